"""Context of a batch of calls: event loop, deadline, agent run and observers."""

import math
from collections.abc import Callable
from typing import NamedTuple

from callboard._calls._observers import Observers, current_observers, current_run, numbers
from callboard._calls._progress import OnProgress
from callboard._loops._current import current_loop
from callboard._loops._deadline import active_time_limits
from callboard._loops._idle import is_postponed_by_activity
from callboard._loops._protocol import EventLoop
from callboard._records._events import RunInfo
from callboard._records._policies import ToolCallLike


class BatchContext(NamedTuple):
    """Event loop, deadline, agent run and observers of a batch of tool calls; shared by all calls of the batch.

    A named tuple, because one is made for each batch, and a frozen dataclass takes four times as long to create.
    """

    loop: EventLoop
    now: float
    until: float
    """Deadline of the code that runs the batch, in loop time. That code cancels the calls; the batch does not."""
    observers: Observers
    run: RunInfo | None
    batch: int
    describe: Callable[[str], str | None] = lambda _: None
    """Function that takes the name of a tool and returns the tool's description for observers."""
    redact_call: Callable[[ToolCallLike], ToolCallLike] = lambda call: call
    """Function that takes a call and returns the version of the call that observers may see."""
    on_progress: OnProgress | None = None
    """Callback for the progress reports of the calls, run in the event loop's thread; `None` without one."""


def create_batch_context(on_progress: OnProgress | None = None) -> BatchContext:
    """Return the event loop, deadline, agent run and observers of a batch that the calling task starts."""
    loop = current_loop()
    now = loop.now()
    outer = active_time_limits.get()
    until = loop.deadline()
    # An idle deadline is no deadline for the calls: each report of activity moves it.
    if until != math.inf and is_postponed_by_activity(until, loop):
        until = math.inf
    # The enclosing call may run in another loop with another clock: only the remaining seconds can be compared.
    if outer is not None:
        until = min(until, now + outer.until - outer.loop.now())
    observers = current_observers()
    return BatchContext(loop, now, until, observers, current_run.get(), next(numbers), on_progress=on_progress)
