"""Enforcement of asyncio cancellations that a library swallowed."""

import asyncio
from typing import Self

AGAIN = 0.05
"""Seconds between two cancellations of a task whose grace is over."""


class SwallowedCancellation:
    """Context manager of `EventLoop.heeding`; asyncio reports no cancellations, so a timer checks once per grace."""

    __slots__ = ("_before", "_grace", "_loop", "_seen", "_sent", "_task", "_timer")

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._seen = False
        self._sent = 0

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._loop, self._before = task, task.get_loop(), task.cancelling()
        self._timer = self._loop.call_later(self._grace, self._look)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *rest: object) -> None:
        self._timer.cancel()
        # Uncancel only what this block sent: the caller's cancellation stays counted, for the caller.
        for _ in range(self._sent):
            self._task.uncancel()
        # The block returned normally although its task was cancelled: the cancellation was swallowed.
        if exc_type is None and self._is_cancelled(0):
            raise asyncio.CancelledError

    def _is_cancelled(self, sent: int) -> bool:
        return self._task.cancelling() - sent > self._before

    def _look(self) -> None:
        was_seen, self._seen = self._seen, self._is_cancelled(self._sent)
        # Only a cancellation that two checks have seen was swallowed: a new one may still be in a clean-up.
        if was_seen and self._seen:
            self._task.cancel()
            self._sent += 1
        self._timer = self._loop.call_later(AGAIN if self._sent else self._grace, self._look)
