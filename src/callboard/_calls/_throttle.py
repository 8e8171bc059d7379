"""What is told often, handed on seldom."""

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
"""Seconds between two of what is handed on."""

_lock = threading.Lock()
"""One for all, because it is held for an instant only."""


class Host(Protocol):
    """Something that runs tasks, and outlives the throttle."""

    def start_beside(self, child: ChildFn, grace: float) -> None:
        """Start a task, unless nothing may start any more."""
        ...


class Throttle(Generic[T]):
    """Hands on what it is given, in the event loop's thread: at once, or the newest when the pause is over.

    What comes after a silence goes on at once. What comes too soon waits in a task, and whatever is newer takes its
    place; so the last of all that was given is always handed on, and never late by more than a pause.

    Args:
        loop: whose thread it is.
        host: runs the tasks that wait.
        hand_on: called in the loop's thread, with the context variables of who gave it.
    """

    __slots__ = ("_closed", "_due", "_hand_on", "_host", "_is_awaited", "_loop", "_newest", "_wakeup")

    def __init__(self, loop: EventLoop, host: Host, hand_on: Callable[[T], None]) -> None:
        self._loop = loop
        self._host = host
        self._hand_on = hand_on
        self._newest: tuple[T, ...] = ()
        """What has not been handed on, if there is something."""
        self._is_awaited = False
        """Whether a task is going to hand it on, or is about to be started."""
        self._due = -math.inf
        self._wakeup: Wakeup | None = None
        self._closed = False

    def put(self, item: T) -> None:
        """Take something to be handed on; from any thread."""
        is_here = self._loop.is_here()
        if is_here and self._is_awaited:  # by a task of this thread
            self._newest = (item,)
            return
        is_due = is_here and self._loop.now() >= self._due
        with _lock:
            self._newest = (item,)
            if self._is_awaited:
                return
            self._is_awaited = not is_due
        if is_due:
            self.flush()
        elif is_here:
            self._wait_for_it()
        else:
            self._loop.post(partial(copy_context().run, self._wait_for_it))

    def flush(self) -> None:
        """Hand on what waits; in the loop's thread."""
        with _lock:
            newest, self._newest = self._newest, ()
        if newest:
            self._due = self._loop.now() + PAUSE
            self._hand_on(newest[0])

    def close(self) -> None:
        """Hand on what waits, and have no task wait any more; nothing is given after that."""
        self._closed = True
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
            with _lock:
                self._is_awaited = False
            self.flush()
