"""`idempotency_key`: key by which a service recognizes a repeated call."""

from typing import Protocol

from callboard._calls._progress import reporter
from callboard._records._policies import ToolCallLike
from callboard._util._canonical import digest


class KeyScope(Protocol):
    """Source of the unique name of a call."""

    @property
    def name(self) -> object:
        """Name that is unique over all calls of all runs, and the same when the call is started again."""
        ...


def key_of(call: ToolCallLike, scope: KeyScope) -> str:
    """Return the key of a call; raise `ValueError` for arguments that JSON cannot express."""
    # The arguments are part of the key, because a middleware may change them between two attempts.
    return digest([scope.name, call["name"], call["args"]])


def current_key() -> str | None:
    """Return the key of the running call; `None` outside of a call."""
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
