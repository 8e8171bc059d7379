"""What is around a batch when it starts: the loop, the deadline, the run, and those who watch."""

from collections.abc import Callable
from dataclasses import dataclass

from anyio import current_effective_deadline

from callboard._calls._observers import Watch, current_run, current_watch, numbers
from callboard._loops._current import current_loop
from callboard._loops._deadline import current_timed
from callboard._loops._protocol import EventLoop
from callboard._types import RunInfo, ToolCallLike


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a batch runs; the same for all its calls."""

    loop: EventLoop
    now: float
    until: float
    """The end of what runs around the batch, on the batch's own clock; it ends the calls by itself."""
    watch: Watch
    run: RunInfo | None
    batch: int
    describe: Callable[[str], str | None] = lambda _: None
    """What a tool says of itself, by its name; for those who watch."""
    shown: Callable[[ToolCallLike], ToolCallLike] = lambda call: call
    """A call as those who watch may see it."""


def surroundings() -> Surroundings:
    """Where the calls that are started here will run."""
    loop = current_loop()
    now = loop.now()
    outer = current_timed.get()
    # What runs around us may have another loop, and that another clock.
    until = current_effective_deadline()
    if outer is not None:
        until = min(until, now + outer.until - outer.loop.now())
    return Surroundings(loop, now, until, current_watch(), current_run.get(), next(numbers))
