"""Sync functions in worker threads, and what is owed for those that cannot be stopped."""

import math
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Generic, Protocol, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from callboard._loop import EventLoop, Wakeup
from callboard.exceptions import AbandonedThreadWarning

T = TypeVar("T")

_BEAT = 0.1
"""Seconds that a cancelled thread has to notice; one that asks `anyio.from_thread.check_cancelled()` does."""

# Callers bound their threads themselves, before they come here, and hold the place for as long as the
# thread lives; anyio's own limiter would free it on asyncio as soon as the waiting is given up.
_unbounded: RunVar[CapacityLimiter] = RunVar("callboard_threads")


class _Job(Generic[T]):
    """A function in a thread; `ended` and `_after` change hands under the lock, so neither side misses the other."""

    __slots__ = ("_after", "_begun", "_ended", "_fn", "_lock")

    def __init__(self, fn: Callable[[], T]) -> None:
        self._fn = fn
        self._lock = threading.Lock()
        self._begun = self._ended = False
        self._after: Callable[[], None] | None = None

    def run(self) -> T:
        with self._lock:
            if self._ended:
                raise CancelledError  # nobody hears it
            self._begun = True
        try:
            return self._fn()
        except StopIteration as exc:
            # A coroutine cannot raise StopIteration: to the one that awaits us it would be a return.
            raise RuntimeError(f"{self._fn!r} raised StopIteration") from exc
        finally:
            with self._lock:
                self._ended = True
                after = self._after
            if after is not None:
                after()

    def drop(self) -> bool:
        """Have it never run; False if it already has begun."""
        with self._lock:
            self._ended = self._ended or not self._begun
            return not self._begun

    def call_after(self, after: Callable[[], None] | None) -> bool:
        """Have `after` called by the thread when it ends; False if it has already ended."""
        with self._lock:
            self._after = after
            return not self._ended


class ThreadOwner(Protocol):
    """Who answers for a thread that goes on after its call."""

    def thread_abandoned(self) -> None:
        """Called in the event loop, when nobody waits for the thread any more."""
        ...

    def thread_ended(self) -> None:
        """Called when such a thread has ended after all, in that thread."""
        ...


async def run_in_thread(loop: EventLoop, fn: Callable[[], T], name: str, owner: ThreadOwner) -> T:
    """Run `fn` in a worker thread, with the caller's context variables.

    A cancelled caller waits a beat for the thread; then it goes, and the result is dropped.

    Args:
        loop: the running event loop.
        fn: what to run.
        name: what to call it in the warning about a thread that goes on.
        owner: told of such a thread.
    """
    job = _Job(fn)
    scope = CancelScope()
    try:
        with scope:
            return await to_thread.run_sync(job.run, abandon_on_cancel=True, limiter=_threads())
    except loop.cancelled_class:
        # Not for ourselves, we are leaving: it makes `check_cancelled()` raise in the thread on asyncio.
        scope.cancel()
        if not job.drop():
            try:
                await _wait_a_beat(loop, job)
            finally:  # also when the grace is shorter than a beat
                if job.call_after(None):
                    _abandon(job, name, owner)
        raise
    raise AssertionError("a scope that nobody cancels swallowed a cancellation")


def _abandon(job: _Job[T], name: str, owner: ThreadOwner) -> None:
    owner.thread_abandoned()
    if not job.call_after(owner.thread_ended):
        owner.thread_ended()
        return
    # Last, because it raises where warnings are errors, and the places have to come back there too.
    warnings.warn(
        f"the worker thread of {name} goes on after its call has ended; a sync function can be stopped only if "
        "it asks anyio.from_thread.check_cancelled() from time to time",
        AbandonedThreadWarning,
        stacklevel=2,
    )


async def _wait_a_beat(loop: EventLoop, job: _Job[T]) -> None:
    wakeup: Wakeup = loop.wakeup()
    if job.call_after(wakeup.set):
        with loop.shield(loop.now() + _BEAT):
            await wakeup.wait()


def _threads() -> CapacityLimiter:
    try:
        return _unbounded.get()
    except LookupError:
        limiter = CapacityLimiter(math.inf)
        _unbounded.set(limiter)
        return limiter
