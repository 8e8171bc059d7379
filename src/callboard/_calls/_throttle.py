"""Rate limit for reports: the newest of many frequent items is delivered at intervals."""

import math
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Generic, Protocol, TypeVar

from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import ChildFn, EventLoop, Scope, Wakeup

T = TypeVar("T")

PAUSE = 0.05
"""Seconds between two deliveries."""

_lock = threading.Lock()
"""Lock of all throttles; shared, because it is held very briefly."""


class Host(Protocol):
    """Owner of tasks that outlives the throttle, such as a batch."""

    def start_beside(self, child: ChildFn, grace: float) -> None:
        """Start a task, unless no task may start any more."""
        ...


class Throttle(Generic[T]):
    """Delivers items in the event loop's thread: at once after a pause, otherwise the newest item when the pause ends.

    Invariant: the last item is always delivered, at most `PAUSE` seconds late. An item that comes too soon waits in a
    task, and a newer one replaces it.

    Args:
        loop: the event loop whose thread delivers.
        host: runs the waiting task.
        hand_on: delivers an item, in the loop's thread and with the context variables of the code that put it.
    """

    __slots__ = ("_closed", "_due", "_hand_on", "_host", "_is_awaited", "_loop", "_newest", "_wakeup")

    def __init__(self, loop: EventLoop, host: Host, hand_on: Callable[[T], None]) -> None:
        self._loop = loop
        self._host = host
        self._hand_on = hand_on
        self._newest: tuple[T, ...] = ()
        """Item that has not been delivered; empty if there is none."""
        # Set under `_lock` from any thread; cleared under it in the loop's thread, before that delivers.
        self._is_awaited = False
        """True if a task will deliver the item, or is about to be started."""
        self._due = -math.inf  # loop time of the next delivery
        self._wakeup: Wakeup | None = None
        self._closed = False

    def put(self, item: T) -> None:
        """Accept an item for delivery; from any thread."""
        is_here = self._loop.is_here()
        # Fast path without the lock: only this thread clears `_is_awaited`, so the item cannot be missed.
        if is_here and self._is_awaited:
            self._newest = (item,)
            return
        is_due = is_here and self._loop.now() >= self._due
        with _lock:
            self._newest = (item,)
            if self._is_awaited:  # the task takes the newest item when it delivers
                return
            self._is_awaited = not is_due
        if is_due:
            self.flush()
        elif is_here:
            self._wait_for_it()
        else:
            self._loop.post(partial(copy_context().run, self._wait_for_it))

    def flush(self) -> None:
        """Deliver the waiting item, if any; in the loop's thread."""
        with _lock:
            newest, self._newest = self._newest, ()
        if newest:
            self._due = self._loop.now() + PAUSE
            self._hand_on(newest[0])

    def close(self) -> None:
        """Deliver the waiting item and end the waiting task; no item may be put afterwards."""
        self._closed = True  # a posted `_wait_for_it` then starts no task: the batch would wait for it
        if self._wakeup is not None:
            self._wakeup.set()
        self.flush()

    def _wait_for_it(self) -> None:
        if not self._closed:
            self._host.start_beside(self._flush_when_due, DEFAULT_GRACE)

    async def _flush_when_due(self, scope: Scope) -> None:
        with scope:
            if not self._closed and self._loop.now() < self._due:
                self._wakeup = self._loop.wakeup()
                with self._loop.scope(self._due, DEFAULT_GRACE):
                    await self._wakeup.wait()
                self._wakeup = None
            # Cleared before the delivery: an item that is put in between starts a task of its own. In the other order
            # it would wait for a delivery that has already happened.
            with _lock:
                self._is_awaited = False
            self.flush()
