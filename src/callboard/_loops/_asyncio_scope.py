"""Cancel scope for asyncio: its first cancellation leaves time for clean-up (grace), then it cancels repeatedly.

anyio's scopes would repeat the cancellation at every turn of the loop. `asyncio.timeout` sends it once and then waits
without limit. A cancellation that a library swallowed is sent again after the grace.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

AGAIN = 0.05
"""Seconds between two cancellations of a task whose grace is over."""

_log = logging.getLogger("callboard")

_LATE = 0.1
"""Seconds that a deadline callback may run late. A longer delay means that other code blocked the event loop."""
_CATCH_UP = 0.02
"""Seconds that a block gets to process ready results if its deadline passed while the event loop was blocked."""


OnExit = Callable[["AsyncioScope", bool], None]
"""Callback for the end of a scope; the flag is true if the block ended normally or by the scope's cancellation."""


class AsyncioScope:
    """Cancel scope of a block in one task; callboard cancels a running task only through its scopes.

    A `CancelledError` in the block has one of three origins, and asyncio does not tell them apart:

    - Ours: `cancel` was called on this scope, or on an outer one in the same task. The scope that sent it swallows it.
    - The caller's: the owner of the task called `task.cancel()`. It is counted in `task.cancelling()` in addition to
      our own. It must propagate outward, or the owner waits for a task that never ends.
    - Foreign: the body raised it, or awaited a future or task that other code had cancelled. The end of this
      block was not requested, so it is an ordinary error of the body.

    Invariant: `_cancellations` is the number of cancellations of this scope which the task still counts in
    `task.cancelling()`. Leaving the scope uncancels exactly that number. One too many would swallow the caller's
    cancellation. One too few would make an outer `asyncio.timeout` raise `CancelledError` instead of `TimeoutError`.
    """

    __slots__ = (
        "_cancellations",  # the invariant above
        "_cancelling_before",  # `task.cancelling()` on entering; a higher count on leaving, minus ours, is the caller's
        "_deadline",  # loop time; `math.inf` for none
        "_entered",  # True while the block runs: before and after, this scope must not cancel the task
        "_grace",  # seconds between the first cancellation and the repeated ones
        "_held_back",  # only in the outermost scope of a task: scopes whose cancellation waits for the end of a shield
        "_outer",  # the enclosing scope in the same task; its cancellation cancels this block, too
        "_previous",  # the previously innermost scope, perhaps of another task: restored on leaving
        "_shields",  # only in the outermost scope of a task: number of open shields; a shield protects the whole task
        "_timer",  # for the deadline; after `cancel`, for the end of the grace
        "_timer_at",  # deadline for which the timer was set; the block's deadline may be later now, see `move`
        "begun",  # True from the beginning of the block on; before, a cancellation of the task must not use this scope
        "cancel_called",  # True once requested, even if a shield still holds the cancellation back
        "on_exit",  # only in the scope of a nursery's child: `AsyncioNursery._remove_child`
        "task",  # the task of the block; a nursery sets it before the task has begun
        "unless_begun",  # only in the scope of a nursery's child: a done callback of the task until the block begins
    )

    def __init__(self, deadline: float, grace: float) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.begun = self.cancel_called = False
        self._deadline = deadline
        self._grace = grace
        self._cancellations = 0
        self._entered = False
        self._shields = 0
        self._held_back: list[AsyncioScope] | None = None
        self._outer: AsyncioScope | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.on_exit: OnExit | None = None
        self.unless_begun: Callable[[asyncio.Task[Any]], None] | None = None

    def __enter__(self) -> Self:
        task, outer = self.task, innermost.get()
        if task is None:
            task = self.task = asyncio.current_task()
            assert task is not None
        if self.unless_begun is not None:
            task.remove_done_callback(self.unless_begun)
            self.unless_begun = None
        # A scope of another task (inherited with the context) is no outer scope: it cancels its own task only.
        self._outer = outer if outer is not None and outer.task is task else None
        self._cancelling_before = task.cancelling()
        self.begun = self._entered = True
        self._previous = outer
        innermost.set(self)
        if self._deadline != math.inf:
            self._timer_at = self._deadline
            self._timer = task.get_loop().call_at(self._deadline, self._expire)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        innermost.set(self._previous)  # not by token: 10,000 waiting calls would keep as many
        self._entered = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # the timer's context refers to this scope: a reference cycle
        swallowed = False
        if self.cancel_called:
            root, task = self._outermost_scope(), self.task
            if root._held_back and self in root._held_back:
                root._held_back.remove(self)
            assert task is not None
            for _ in range(self._cancellations):
                task.uncancel()
            # Swallow only our own cancellation. The caller's is still counted by the task, and that of an outer scope
            # must propagate through this block to reach the outer scope.
            if isinstance(error, asyncio.CancelledError):
                swallowed = task.cancelling() <= self._cancelling_before and not self._is_outer_cancelled()
        if self.on_exit is not None:
            self.on_exit(self, error is None or swallowed)
        return swallowed

    def cancel(self) -> None:
        """Cancel the block now, and repeatedly after its time for clean-up until it ends."""
        if self.cancel_called or not self._entered:
            return
        self.cancel_called = True
        self._send_unless_shielded()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._grace, self._cancel_again)

    cancel_alone = cancel

    def end_cancellation(self, error: BaseException | None) -> bool:
        """End a cancellation of the block, which goes on; return whether it has raised `error`."""
        if not self.cancel_called:
            return False
        root, task = self._outermost_scope(), self.task
        assert task is not None
        if root._held_back and self in root._held_back:
            root._held_back.remove(self)
        for _ in range(self._cancellations):
            task.uncancel()
        self.cancel_called, self._cancellations = False, 0
        self._set_timer()
        return (
            isinstance(error, asyncio.CancelledError)
            and task.cancelling() <= self._cancelling_before
            and not self._is_outer_cancelled()
        )

    def move(self, deadline: float, *, grace: float | None = None) -> None:
        """Change the deadline of the scope, and the time for clean-up (`grace`) if it is given."""
        if self.cancel_called or not self._entered:
            return
        if grace is not None:
            self._grace = grace
        self._deadline = deadline
        # A timer that is early by now stays: it costs less than a new one for each move, and looks at the deadline.
        if self._timer is None or deadline < self._timer_at:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = None if self._deadline == math.inf else self._loop.call_at(self._deadline, self._expire)

    def _expire(self, is_last: bool = False) -> None:
        if self._deadline > self._timer_at:
            self._set_timer()
        elif is_last or self._loop.time() - self._deadline < _LATE:
            self.cancel()
        else:
            # Other code blocked the loop: results that became ready meanwhile are processed before the cancellation.
            self._timer = self._loop.call_later(_CATCH_UP, self._expire, True)

    @contextmanager
    def shield(self) -> Generator[None]:
        """Delay cancellations of the task while a `with` block runs, and deliver them at the end of the block."""
        root = self._outermost_scope()
        root._shields += 1
        try:
            yield
        finally:
            root._shields -= 1
            if not root._shields:
                scopes, root._held_back = root._held_back, None
                for scope in scopes or ():
                    # Not at once: a scope that ends in this turn of the loop needs no cancellation any more.
                    self._loop.call_soon(scope._send_unless_shielded)

    def is_cancelled(self) -> bool:
        """Return whether this scope, or an outer scope in the same task, was cancelled."""
        return self.cancel_called or self._is_outer_cancelled()

    def _is_outer_cancelled(self) -> bool:
        return self._outer is not None and self._outer.is_cancelled()

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        assert self.task is not None
        return self.task.get_loop()

    def _outermost_scope(self) -> "AsyncioScope":
        return self if self._outer is None else self._outer._outermost_scope()

    def _send_unless_shielded(self) -> None:
        root = self._outermost_scope()
        if self in (root._held_back or ()):
            return  # a cancellation of this scope waits already
        if root._shields:  # perhaps the next shield of the task: two clean-ups may follow each other without an await
            root._held_back = [*(root._held_back or ()), self]
        else:
            self._send_cancellation()

    def _send_cancellation(self) -> None:
        if not self._entered or not self.cancel_called:
            return  # the block, or its cancellation, ended in the turn of the loop in which the last shield was left
        assert self.task is not None
        self._cancellations += 1
        self.task.cancel()

    def _cancel_again(self) -> None:
        # The grace is over. A task that awaits again after each cancellation is cancelled again, with pauses in which
        # a connection can be closed. Cancelled at each turn of the loop, its `aclose()` could never complete.
        self._send_cancellation()
        if self._cancellations == 3:
            _log.warning("%r goes on although it was cancelled and its grace is over", self.task)
        self._timer = self._loop.call_later(AGAIN, self._cancel_again)


innermost: ContextVar[AsyncioScope | None] = ContextVar("callboard_asyncio_scope", default=None)


def is_enforced() -> bool:
    """Return whether an enclosing scope of the calling task was cancelled and the time for its clean-up is over."""
    scope = innermost.get()
    while scope is not None and scope._cancellations < 2:
        scope = scope._outer
    return scope is not None


def foreign_cancellation(exc: BaseException) -> "tuple[AsyncioScope, asyncio.Task[object]] | None":
    """Return the innermost scope and its task if `exc` is a cancellation that no scope requested; else `None`."""
    scope, task = innermost.get(), asyncio.current_task()
    if not isinstance(exc, asyncio.CancelledError) or task is None or scope is None or scope.task is not task:
        return None
    return None if scope.is_cancelled() else (scope, task)
