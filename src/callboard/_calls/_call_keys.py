"""Keys by which a service detects repeated requests (`idempotency_key`) and outdated ones (`fencing_token`)."""

from collections.abc import Collection, Mapping
from contextvars import ContextVar
from itertools import islice
from typing import NamedTuple, Protocol

from callboard._calls._progress import reporter
from callboard._records._policies import ToolCallLike
from callboard._util._canonical import digest, short_digest
from callboard._util._suggestions import no_such

_MAX_VALUE_CHARS = 10_000
"""Maximum characters and values of an argument that can be part of a key. A digest of more would block the loop."""
_MAX_ARGUMENTS = 100
"""Maximum number of arguments that can be part of a key: a model may write any number of them."""


class KeyScope(Protocol):
    """Protocol of an object that knows the unique name of a call."""

    @property
    def name(self) -> object:
        """Unique name of the call among all calls of all runs; a call that is restarted keeps its name."""
        ...

    @property
    def thread_id(self) -> object:
        """Conversation of the call; `None` without one."""
        ...


class KeyParts(NamedTuple):
    """Digests from which a key is made that names some arguments. Plain data, which is sent to a worker."""

    scope: str | None
    """Digest of the conversation and the tool; `None` without a conversation."""
    arguments: Mapping[str, str | None]
    """Digests of the arguments by name; `None` for an argument that cannot be part of a key."""


def key_parts_of(tool: str, arguments: Mapping[str, object], thread_id: object) -> KeyParts:
    """Return the parts of keys that name some arguments of a call."""
    digests = {name: short_digest(value, _MAX_VALUE_CHARS) for name, value in islice(arguments.items(), _MAX_ARGUMENTS)}
    return KeyParts(digest([str(thread_id), tool]), digests)


def _key_of_arguments(parts: KeyParts, names: Collection[str]) -> str:
    """Return the key that names some arguments of a call; raise an error if it cannot be made."""
    scope, arguments = parts
    if scope is None:
        raise RuntimeError(
            "idempotency_key(of=...) is the same within a conversation, and this run has none: give the node or the "
            'agent config={"configurable": {"thread_id": ...}}'
        )
    if (unknown := next((name for name in names if name not in arguments), None)) is not None:
        raise ValueError(f"idempotency_key(of=...): {no_such('argument', unknown, arguments)}")
    if (refused := next((name for name in names if arguments[name] is None), None)) is not None:
        raise ValueError(
            f"idempotency_key(of=...): the argument {refused!r} cannot be part of a key: it has more than "
            f"{_MAX_VALUE_CHARS:,} characters or values, a number such as NaN, or a value that JSON cannot express; "
            "name an argument that is a short text or a number"
        )
    return digest([scope, {name: arguments[name] for name in names}])


def key_of(call: ToolCallLike, scope: KeyScope) -> str:
    """Return the idempotency key of a call; raise `ValueError` for arguments that JSON cannot express."""
    # The arguments are part of the key, because a middleware may change them between two attempts.
    return digest([scope.name, call["name"], call["args"]])


def current_key() -> str | None:
    """Return the idempotency key of the running call; `None` outside of a call."""
    return getattr(reporter.get(), "idempotency_key", None)


def current_key_parts() -> KeyParts | None:
    """Return the parts of keys that name some arguments of the running call; `None` outside of a call."""
    return getattr(reporter.get(), "key_parts", None)


def idempotency_key(*, of: Collection[str] | None = None) -> str:
    """Return a key by which a service recognizes a repeated call, so that it does the work only once.

    The key is a SHA-256 in hex of the thread, the position of the call in it, the tool and the arguments. It is the
    same in every attempt of the call, and after a restart of the call: after an interrupt, after a crash, in another
    process of an engine. Any other call has another key, even one with the same id and arguments in a later turn.
    A tool with several requests adds a suffix for each, such as `f"{idempotency_key()}-refund"`.

    A model may plan a call again, for example after a timeout. With `of=("order",)` the key is the same for all calls
    of the tool in the conversation whose argument `order` is equal, whatever their other arguments and their ids. Other
    conversations have other keys.

    Call it in the body of a tool, or in the handler of an actor that works for a tool call. The key is a valid value
    of the HTTP header `Idempotency-Key`.

    Args:
        of: names of the arguments that identify the request; a default counts for an argument that the model has left
            out. `None` for a key of this call alone.

    Raises:
        RuntimeError: outside of a call, or with `of` in a run without a thread.
        ValueError: if JSON cannot express an argument, or with `of` for an argument that the tool does not have, or
            that is longer than 10,000 characters.
        TypeError: if `of` is no collection of names.
    """
    if of is not None:
        names: object = of  # checked at the run, too: a program may have no type checker
        if isinstance(names, str) or not (isinstance(names, Collection) and all(isinstance(n, str) for n in names)):
            raise TypeError(f"idempotency_key(of=...) takes names of arguments, such as ('order',); got {of!r}")
        if not of:
            raise ValueError("idempotency_key(of=...) names no argument; leave it out for a key of this call alone")
        if (parts := current_key_parts()) is not None:
            return _key_of_arguments(parts, of)
    if (key := current_key()) is None:
        raise RuntimeError(
            "idempotency_key() is of a tool call, and none runs here; call it in the body of a tool that a ToolNode or "
            "an agent runs, or in the handler of an actor that works for one"
        )
    return key


class _LeaseToken(NamedTuple):
    """Fencing token of the lease that the running actor of a fleet holds, and the attempt in which it was set."""

    token: int
    attempt: object


_lease_token: ContextVar[_LeaseToken | None] = ContextVar("callboard_lease_token", default=None)


def set_fencing_token(token: int) -> None:
    """Set the fencing token of the running actor's lease, except for tool calls that the actor starts."""
    _lease_token.set(_LeaseToken(token, reporter.get()))


def fencing_token() -> int | None:
    """Return the fencing token of the lease that protects the running code; `None` without a lease.

    In an actor of a fleet, the lease is that of its key. In a tool call, it is the permit at a shared limit; with
    several shared limits, at the narrowest.

    A later permit or owner has a higher token. A process that was suspended for too long loses its lease without
    noticing. So a resource should store the highest token that it has seen, and refuse requests with a lower one.
    This gives exclusive access with `Limit(concurrency=1)`; with more permits, it only recognizes late calls.
    """
    attempt, lease_token = reporter.get(), _lease_token.get()
    if lease_token is not None and lease_token.attempt is attempt:
        return lease_token.token
    return getattr(attempt, "fencing_token", None)
