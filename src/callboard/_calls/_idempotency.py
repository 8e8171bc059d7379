"""`idempotency_key`: by which others know a call again that has been made before."""

from typing import Protocol

from callboard._calls._progress import reporter
from callboard._canonical import digest
from callboard._types import ToolCallLike


class Scope(Protocol):
    """What a call runs in: something that gives it a name which no other call has."""

    @property
    def name(self) -> object:
        """A name that no other call has, in any run, and that this one has again when it is begun anew."""
        ...


def key_of(call: ToolCallLike, scope: Scope) -> str:
    """The key of a call with these arguments.

    Raises:
        ValueError: for an argument of which there is no JSON.
    """
    return digest([scope.name, call["name"], call["args"]])


def current_key() -> str | None:
    """The key of the running call; `None` outside of one."""
    return getattr(reporter.get(), "idempotency_key", None)


def idempotency_key() -> str:
    """A key by which a service knows a call again that it has had before, and does its work only once.

    SHA-256, in hex, over the thread, the call's place in it, the tool and the arguments that it runs with. The same in
    every attempt of a call, and when the call is begun anew: after an interrupt, after a crash, from an engine's
    other process. Another one for any other call, even for one of the same id and arguments in a later turn.
    A tool that asks for several things adds a name of its own for each, such as `f"{idempotency_key()}-refund"`.

    To be called in the body of a tool, or in an actor's handler that works for one. What follows the draft of the
    HTTP header `Idempotency-Key` takes it as it is.

    Raises:
        RuntimeError: outside of a call.
        ValueError: for a call with an argument of which there is no JSON.
    """
    if (key := current_key()) is None:
        raise RuntimeError(
            "idempotency_key() is of a tool call, and none runs here; call it in the body of a tool that a ToolNode or "
            "an agent runs, or in the handler of an actor that works for one"
        )
    return key
