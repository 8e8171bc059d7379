"""`progress`: what the body of a tool says of its progress, to whom it may concern."""

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from callboard._types import ToolCallLike


class Progress(NamedTuple):
    """How far running code says that it is: in words, and in units done of a total, as far as it knows them."""

    message: str = ""
    done: float | None = None
    total: float | None = None

    @property
    def facts(self) -> dict[str, object]:
        """What of it are numbers; a message may have arguments in it."""
        return {name: value for name, value in (("done", self.done), ("total", self.total)) if value is not None}


OnProgress = Callable[[ToolCallLike, Progress], None]
"""Takes a call, and how far it is."""


class Reporter(Protocol):
    """A call, or one attempt of it: what code works for."""

    def report(self, progress: Progress) -> None:
        """Take in a sign of life, and tell those who watch; from any thread."""
        ...


reporter: ContextVar[Reporter | None] = ContextVar("callboard_supervised", default=None)
"""What the code that runs here works for: an attempt, or in a middleware the call."""


def progress(message: str = "", *, done: float | None = None, total: float | None = None) -> None:
    """Say that the running tool is alive, and how far it is.

    Never waits, and may be called in async code, in a sync tool's thread, and in whatever runs with the context
    variables of the tool. It starts the idle timeout of the attempt anew, and those of the calls around it. Observers
    and the stream writer of the graph hear of it at most every 50 ms: what comes too soon waits, and of that only the
    newest is told. Outside a call it does nothing, and so it does once the attempt has ended.

    Args:
        message: for whoever watches; as private as an argument of the tool.
        done: how much is done, in any unit; may be more than `total`, which may be an estimate.
        total: how much there is to do.

    Raises:
        TypeError: for a message that is no text, or an amount that is no number.
        ValueError: for an amount that is negative, infinite or not a number.
    """
    check_progress(message, done, total)
    here = reporter.get()
    if here is not None:
        here.report(Progress(message, done, total))


def check_progress(message: str, done: float | None, total: float | None) -> None:
    """Refuse what says nothing of progress; raises as `progress` does."""
    if not isinstance(message, str):
        raise TypeError(f"progress(message) is a text, got {message!r}; an amount is progress(done=...)")
    if done is not None:
        _check_amount("done", done)
    if total is not None:
        _check_amount("total", total)


def _check_amount(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"progress({name}=...) is a number, such as 3 or 0.5, got {value!r}; float() makes one")
    if not 0 <= value < math.inf:
        raise ValueError(f"progress({name}=...) is 0 or more, and finite, got {value!r}; leave out what nobody knows")
