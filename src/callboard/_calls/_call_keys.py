"""Keys by which a service detects repeated requests (`idempotency_key`) and outdated ones (`fencing_token`)."""

from contextvars import ContextVar
from typing import Protocol

from callboard._calls._progress import reporter
from callboard._records._policies import ToolCallLike
from callboard._util._canonical import digest


class KeyScope(Protocol):
    """Protocol of an object that knows the unique name of a call."""

    @property
    def name(self) -> object:
        """Unique name of the call among all calls of all runs; a call that is restarted keeps its name."""
        ...


def key_of(call: ToolCallLike, scope: KeyScope) -> str:
    """Return the idempotency key of a call; raise `ValueError` for arguments that JSON cannot express."""
    # The arguments are part of the key, because a middleware may change them between two attempts.
    return digest([scope.name, call["name"], call["args"]])


def current_key() -> str | None:
    """Return the idempotency key of the running call; `None` outside of a call."""
    return getattr(reporter.get(), "idempotency_key", None)


def idempotency_key() -> str:
    """Return a key by which a service recognizes a repeated call, so that it does the work only once.

    The key is a SHA-256 in hex of the thread, the position of the call in it, the tool and the arguments. It is the
    same in every attempt of the call, and after a restart of the call: after an interrupt, after a crash, in another
    process of an engine. Any other call has another key, even one with the same id and arguments in a later turn.
    A tool with several requests adds a suffix for each, such as `f"{idempotency_key()}-refund"`.

    Call it in the body of a tool, or in the handler of an actor that works for a tool call. The key is a valid value
    of the HTTP header `Idempotency-Key`.

    Raises:
        RuntimeError: outside of a call.
        ValueError: if JSON cannot express an argument of the call.
    """
    if (key := current_key()) is None:
        raise RuntimeError(
            "idempotency_key() is of a tool call, and none runs here; call it in the body of a tool that a ToolNode or "
            "an agent runs, or in the handler of an actor that works for one"
        )
    return key


_owned: ContextVar[tuple[int, object] | None] = ContextVar("callboard_owned", default=None)
"""Fencing token of the lease that the running actor of a fleet holds, and the attempt in which the token was set."""


def set_fencing_token(token: int) -> None:
    """Set the fencing token of the running actor's lease, except for tool calls that the actor starts."""
    _owned.set((token, reporter.get()))


def fencing_token() -> int | None:
    """Return the fencing token of the lease that protects the running code; `None` without a lease.

    In an actor of a fleet, the lease is that of its key. In a tool call, it is the permit at a shared limit; with
    several shared limits, at the narrowest.

    A later permit or owner has a higher token. A process that was suspended for too long loses its lease without
    noticing. So a resource should store the highest token that it has seen, and refuse requests with a lower one.
    This gives exclusive access with `Limit(concurrency=1)`; with more permits, it only recognizes late calls.
    """
    attempt, owned = reporter.get(), _owned.get()
    if owned is not None and owned[1] is attempt:
        return owned[0]
    return getattr(attempt, "fencing_token", None)
