"""Progress reports of running tools: the function `progress`, and a rate limit for the delivery of reports.

If reports are frequent, only the newest one is delivered at each interval.
"""

import math
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import ChildFn, EventLoop, Scope, Wakeup
from callboard._records._policies import ToolCallLike


class Progress(NamedTuple):
    """Progress of a call: a message, the amount of work done and the total amount, each if known."""

    message: str = ""
    done: float | None = None
    total: float | None = None

    @property
    def facts(self) -> dict[str, object]:
        """Amounts `done` and `total` by name, if known; without the message, which may be confidential."""
        return {name: value for name, value in (("done", self.done), ("total", self.total)) if value is not None}


OnProgress = Callable[[ToolCallLike, Progress], None]
"""Callback that takes a call and its progress."""


class Reporter(Protocol):
    """Call, or attempt of a call, that receives progress reports of the running code."""

    def report(self, progress: Progress) -> None:
        """Count the report as activity and pass it to observers; may be called from any thread."""
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
    supervised = reporter.get()
    if supervised is not None:
        supervised.report(Progress(message, done, total))


def check_progress(message: str, done: float | None, total: float | None) -> None:
    """Check the arguments of `progress()`; raise `TypeError` or `ValueError` as documented there."""
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


T = TypeVar("T")

PAUSE = 0.05
"""Seconds between two deliveries of progress reports."""

_lock = threading.Lock()
"""Lock of all throttles; shared, because it is held very briefly."""


class Host(Protocol):
    """Protocol of a batch, reduced to the members that `Throttle` and the batch's calls need."""

    @property
    def closed(self) -> bool:
        """True if the batch starts no further call or attempt."""
        ...

    def start_beside(self, child: ChildFn, grace: float) -> None:
        """Start a task beside the calls, unless the batch is closed; the batch also waits for this task."""
        ...


class Throttle(Generic[T]):
    """Rate limiter for items: delivers the newest item about once per `PAUSE` seconds, and drops older ones.

    Items are delivered in the event loop's thread.

    Invariant: the last item is always delivered, at most `PAUSE` seconds late. An item that comes too soon waits in a
    task, and a newer one replaces it.
    """

    __slots__ = ("_closed", "_deliver", "_due_at", "_has_flush_task", "_host", "_loop", "_newest", "_wakeup")

    def __init__(self, loop: EventLoop, host: Host, deliver: Callable[[T], None]) -> None:
        self._loop = loop
        self._host = host
        self._deliver = deliver
        self._newest: tuple[T, ...] = ()
        """Item that has not been delivered; empty if there is none."""
        # Set under `_lock` from any thread; cleared under it in the loop's thread, before that delivers.
        self._has_flush_task = False
        """True if a task that will deliver the waiting item runs, or is about to be started."""
        self._due_at = -math.inf  # loop time of the next delivery
        self._wakeup: Wakeup | None = None
        self._closed = False

    def put(self, item: T) -> None:
        """Accept an item for delivery, now or after the pause; may be called from any thread."""
        is_here = self._loop.is_here()
        # Fast path without the lock: only this thread clears `_has_flush_task`, so the item cannot be missed.
        if is_here and self._has_flush_task:
            self._newest = (item,)
            return
        is_due = is_here and self._loop.now() >= self._due_at
        with _lock:
            self._newest = (item,)
            if self._has_flush_task:  # the task takes the newest item when it delivers
                return
            self._has_flush_task = not is_due
        if is_due:
            self.flush()
        elif is_here:
            self._start_flush_task()
        else:
            self._loop.post(partial(copy_context().run, self._start_flush_task))

    def flush(self) -> None:
        """Deliver the waiting item, if any; call this in the event loop's thread."""
        with _lock:
            newest, self._newest = self._newest, ()
        if newest:
            self._due_at = self._loop.now() + PAUSE
            self._deliver(newest[0])

    def close(self) -> None:
        """Deliver the waiting item, and end the task that waits to deliver it; no item may be put afterwards."""
        self._closed = True  # a posted `_wait_for_it` then starts no task: the batch would wait for it
        if self._wakeup is not None:
            self._wakeup.set()
        self.flush()

    def _start_flush_task(self) -> None:
        if not self._closed:
            self._host.start_beside(self._flush_when_due, DEFAULT_GRACE)

    async def _flush_when_due(self, scope: Scope) -> None:
        with scope:
            if not self._closed and self._loop.now() < self._due_at:
                self._wakeup = self._loop.wakeup()
                with self._loop.scope(self._due_at, DEFAULT_GRACE):
                    await self._wakeup.wait()
                self._wakeup = None
            # Cleared before the delivery: an item that is put in between starts a task of its own. In the other order
            # it would wait for a delivery that has already happened.
            with _lock:
                self._has_flush_task = False
            self.flush()
