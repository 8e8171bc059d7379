"""Function that runs an agent's call in a worker process. This module imports little: every worker loads it."""

from collections.abc import Callable
from functools import partial
from typing import Any

# The pool reads this return annotation: it validates a confined worker's JSON against the type.
_OUTCOME = tuple[int, bytes]


def run_in_worker(subject: str, is_plain: bool, pickled: bytes) -> _OUTCOME:
    """Run a call of a served function in a worker process; return its encoded reply, which the server only forwards."""
    from callboard_actors._engine._replies import Replies, called, replies

    encode = replies(is_plain=is_plain)

    def raised(error: Exception) -> Any:
        if isinstance(error, MemoryError):
            raise error  # its pool replaces a worker that may hold on to this memory
        return encode.raised(error)

    return called(pickled, Replies(encode.returned, raised), partial(_check, subject))  # type: ignore[return-value]


def name_of(subject: Callable[..., Any]) -> str:
    """Return the name by which a function or actor is served: `module:qualname`."""
    while (inner := getattr(subject, "func", None)) is not None and not hasattr(subject, "__qualname__"):
        subject = inner
    module = getattr(subject, "__module__", None) or type(subject).__module__
    return f"{module}:{getattr(subject, '__qualname__', None) or type(subject).__qualname__}"


def _check(subject: str, fn: Callable[..., Any]) -> None:
    """Raise `TypeError` if `fn`, the pickled function of a call, is not the function `subject` that the call names."""
    # Functions of callboard itself wrap the named one, such as an actor's methods.
    # Against mistakes, not attacks: unpickling has already run code of the agent, which has the secret. Use `--confine`
    # against agents that are not trusted.
    if name_of(fn) != subject and not str(getattr(fn, "__module__", "")).startswith("callboard."):
        raise TypeError(f"{name_of(fn)} came with a call of {subject}")
