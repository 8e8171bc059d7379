"""What is around a batch when it starts: the loop, the deadline, the run, and the observers."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from anyio import current_effective_deadline

from callboard._call_events import RunInfo
from callboard._calls._observers import Observers, current_observers, current_run, numbers
from callboard._calls._progress import OnProgress
from callboard._loops._current import current_loop
from callboard._loops._deadline import current_timed
from callboard._loops._idle import is_put_off
from callboard._loops._protocol import EventLoop
from callboard._types import ToolCallLike


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a batch finds where it starts, and all its calls share: the loop, the time, the run, who watches."""

    loop: EventLoop
    now: float
    until: float
    """The end of what runs around the batch, on the batch's own clock; it ends the calls by itself."""
    observers: Observers
    run: RunInfo | None
    batch: int
    describe: Callable[[str], str | None] = lambda _: None
    """What a tool says of itself, by its name; for observers."""
    shown: Callable[[ToolCallLike], ToolCallLike] = lambda call: call
    """A call as observers may see it."""
    on_progress: OnProgress | None = None
    """Told of the calls' progress, in the loop's thread."""


def surroundings(on_progress: OnProgress | None = None) -> Surroundings:
    """Where the calls that are started here will run."""
    loop = current_loop()
    now = loop.now()
    outer = current_timed.get()
    # What runs around us may have another loop, and that another clock.
    until = current_effective_deadline()
    if is_put_off(until, loop):
        until = math.inf
    if outer is not None:
        until = min(until, now + outer.until - outer.loop.now())
    observers = current_observers()
    return Surroundings(loop, now, until, observers, current_run.get(), next(numbers), on_progress=on_progress)
