"""`progress`: progress reports from the body of a tool."""

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from callboard._records._policies import ToolCallLike


class Progress(NamedTuple):
    """Progress of a call: a message, and units done of a total, each if known."""

    message: str = ""
    done: float | None = None
    total: float | None = None

    @property
    def facts(self) -> dict[str, object]:
        """Numbers of the report, without the message, which may contain confidential arguments."""
        return {name: value for name, value in (("done", self.done), ("total", self.total)) if value is not None}


OnProgress = Callable[[ToolCallLike, Progress], None]
"""Callback that takes a call and its progress."""


class Reporter(Protocol):
    """Call, or attempt of a call, that receives progress reports of the running code."""

    def report(self, progress: Progress) -> None:
        """Count the report as activity and pass it to observers; from any thread."""
        ...


reporter: ContextVar[Reporter | None] = ContextVar("callboard_supervised", default=None)
"""Attempt that the running code belongs to; in a middleware, the call."""


def progress(message: str = "", *, done: float | None = None, total: float | None = None) -> None:
    """Report activity and progress of the running tool.

    Never waits. May be called in async code, in the thread of a sync tool, and in any code with the context variables
    of the tool. It restarts the idle timeout of the attempt, and those of enclosing calls. Observers and the stream
    writer of the graph receive a report at most every 50 ms; in between, a newer report replaces the waiting one.
    Outside a call, and after the end of the attempt, it does nothing.

    Args:
        message: text for observers and users; as confidential as the arguments of the tool.
        done: amount done, in any unit; may exceed `total`, which may be an estimate.
        total: amount of all work, in the same unit.

    Raises:
        TypeError: if the message is no string, or an amount is no number.
        ValueError: if an amount is negative, infinite or NaN.
    """
    check_progress(message, done, total)
    here = reporter.get()
    if here is not None:
        here.report(Progress(message, done, total))


def check_progress(message: str, done: float | None, total: float | None) -> None:
    """Check the arguments of `progress()`, and raise as it does."""
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
