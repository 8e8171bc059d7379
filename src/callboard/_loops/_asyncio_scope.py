"""A block on asyncio that ends at a deadline: what it sends to its task, and what it takes back.

anyio's scopes would repeat the cancellation at every turn of the loop, and `asyncio.timeout` sends it once and waits.
"""

import asyncio
import logging
import math
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from callboard._loops._swallowed import AGAIN

_log = logging.getLogger("callboard")

_LATE = 0.1
"""Seconds by which a deadline may be missed; after that it was not the block that took too long."""
_CATCH_UP = 0.02
"""Seconds for such a block to take what is ready."""


class AsyncioScope:
    """A block in one task, with a deadline; the only door through which callboard cancels that task.

    A `CancelledError` in the block has one of three origins, and asyncio does not say which:

    - Ours: `cancel` was called, here or on a scope around this one in the same task. It ends at the scope that sent it.
    - The caller's: whoever owns the task called `task.cancel()`. It is counted in `task.cancelling()`, beyond what we
      sent, and has to go on outward, or the owner waits for a task that never ends.
    - A stranger's: the body raised it by itself, or awaited something that somebody else had cancelled. Nobody asked
      for the end of this block, so it is an error of the body like any other.

    Invariant: `_sent` is the number of cancellations of this scope which the task still counts in
    `task.cancelling()`; leaving the scope takes exactly those back, and no other. One too many would swallow the
    caller's cancellation, one too few would have an `asyncio.timeout` around us raise a cancellation for its timeout.
    """

    __slots__ = (
        "_around",  # the scope that was the innermost before, perhaps of another task: to be restored on leaving
        "_before",  # what `task.cancelling()` was on entering; what is more by then, and not ours, is the caller's
        "_deadline",  # on the loop's clock; `math.inf` for none
        "_entered",  # whether the block runs now: before and after, nothing may reach the task through this scope
        "_grace",  # seconds between the one cancellation and those that repeat it
        "_held",  # of the outermost scope of a task: the scopes whose cancellation waits for the end of a shield
        "_loop",
        "_outer",  # the scope around this one in the same task, whose cancellation is also ours
        "_sent",  # the invariant above
        "_shields",  # of the outermost scope of a task: how many shields are open; a task has one fate, not one a scope
        "_timer",  # for the deadline; after `cancel`, for the end of the grace
        "cancel_called",  # ours: asked for, though perhaps held back by a shield
        "task",
    )

    def __init__(self, deadline: float, grace: float) -> None:
        self.task: asyncio.Task[object] | None = None
        self.cancel_called = False
        self._deadline = deadline
        self._grace = grace
        self._sent = 0
        self._entered = False
        self._shields = 0
        self._held: list[AsyncioScope] | None = None
        self._outer: AsyncioScope | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        outer = innermost.get()
        # A scope of another task is no outer scope: that task's cancellation reaches us by its own means.
        self._outer = outer if outer is not None and outer.task is task else None
        self.task = task
        self._loop = task.get_loop()
        self._before = task.cancelling()
        self._entered = True
        self._around = outer
        innermost.set(self)
        if self._deadline != math.inf:
            self._timer = self._loop.call_at(self._deadline, self._expire)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        innermost.set(self._around)  # not by token: 10,000 waiting calls would keep as many
        self._entered = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # its context leads back here
        if not self.cancel_called:
            return False
        root = self._root()
        if root._held and self in root._held:
            root._held.remove(self)
        task = self.task
        assert task is not None
        for _ in range(self._sent):
            task.uncancel()
        # Swallowed is only ours: the caller's is still counted by the task, and that of a scope around this one has to
        # pass through here to reach it.
        return (
            exc_type is not None
            and issubclass(exc_type, asyncio.CancelledError)
            and task.cancelling() <= self._before
            and not self._outer_cancelled()
        )

    def cancel(self) -> None:
        """Cancel the block: once now, and until it ends when the grace is over."""
        if self.cancel_called or not self._entered:
            return
        self.cancel_called = True
        root = self._root()
        if root._shields:
            root._held = [*(root._held or ()), self]
        else:
            self._send()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._grace, self._enforce)

    def move(self, deadline: float, *, grace: float | None = None) -> None:
        """Have the block end at another time than it was to."""
        if self.cancel_called or not self._entered:
            return
        if grace is not None:
            self._grace = grace
        if self._timer is not None:
            self._timer.cancel()
        self._deadline = deadline
        self._timer = None if deadline == math.inf else self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        if self._loop.time() - self._deadline < _LATE:
            self.cancel()
        else:
            # Somebody held the loop: what had become ready by then goes first.
            self._timer = self._loop.call_later(_CATCH_UP, self.cancel)

    @contextmanager
    def shield(self) -> Generator[None]:
        """Hold cancellations back while the block runs, and deliver them at its end."""
        root = self._root()
        root._shields += 1
        try:
            yield
        finally:
            root._shields -= 1
            if not root._shields:
                held, root._held = root._held, None
                for scope in held or ():
                    # Not at once: a scope that ends right here takes its cancellation with it.
                    self._loop.call_soon(scope._send)

    def asked(self) -> bool:
        """Whether this scope or one around it in the same task was cancelled."""
        return self.cancel_called or self._outer_cancelled()

    def _outer_cancelled(self) -> bool:
        return self._outer is not None and self._outer.asked()

    def _root(self) -> "AsyncioScope":
        return self if self._outer is None else self._outer._root()

    def _send(self) -> None:
        if not self._entered:
            return  # the block ended in the turn in which a shield let the cancellation go
        assert self.task is not None
        self._sent += 1
        self.task.cancel()

    def _enforce(self) -> None:
        # The grace is over. A task that awaits again after each cancellation is cancelled again and again, with pauses
        # in which whatever it closes can close; at each turn of the loop it would get nothing closed.
        self._send()
        if self._sent == 3:
            _log.warning("%r goes on although it was cancelled and its grace is over", self.task)
        self._timer = self._loop.call_later(AGAIN, self._enforce)


innermost: ContextVar[AsyncioScope | None] = ContextVar("callboard_asyncio_scope", default=None)


def is_enforced() -> bool:
    """Whether the grace of a scope around this code, in its task, is over."""
    scope = innermost.get()
    while scope is not None and scope._sent < 2:
        scope = scope._outer
    return scope is not None


def unasked(exc: BaseException) -> "tuple[AsyncioScope, asyncio.Task[object]] | None":
    """The innermost scope and its task, if an error is a cancellation that nobody asked the scope for."""
    scope, task = innermost.get(), asyncio.current_task()
    if not isinstance(exc, asyncio.CancelledError) or task is None or scope is None or scope.task is not task:
        return None
    return None if scope.asked() else (scope, task)
