"""Sync functions in worker threads, and what is owed for those that cannot be stopped."""

import atexit
import logging
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from anyio import CancelScope

from callboard._loops._forks import after_fork_in_child
from callboard._loops._own_thread import OwnThread
from callboard._loops._protocol import EventLoop, Wakeup
from callboard._loops._start_order import StartOrder, Ticket
from callboard.exceptions import AbandonedThreadWarning

T = TypeVar("T")

_log = logging.getLogger("callboard")

_BEAT = 0.1
"""Seconds that a cancelled thread has to notice; one that asks `anyio.from_thread.check_cancelled()` does."""


class _Job(Generic[T]):
    """A function in a thread; `ended` and `_after` change hands under the lock, so neither side misses the other."""

    __slots__ = ("_after", "_begun", "_ended", "_fn", "_lock", "_ticket", "name", "since")

    def __init__(self, fn: Callable[[], T], name: str, ticket: Ticket | None) -> None:
        self.name = name
        self._ticket = ticket
        self.since = time.monotonic()
        """In real time, whatever the event loop's clock says."""
        self._fn = fn
        self._lock = threading.Lock()
        self._begun = self._ended = False
        self._after: Callable[[], None] | None = None

    def run(self) -> T:
        ticket = self._ticket
        if ticket is not None:
            ticket.wait()
        with self._lock:
            if self._ended:
                raise CancelledError  # nobody hears it
            self._begun = True
        try:
            if ticket is not None:
                ticket.pass_on()  # nothing may come between this line and the function
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


async def run_in_thread(
    loop: EventLoop,
    fn: Callable[[], T],
    name: str,
    owner: ThreadOwner,
    thread: OwnThread | None = None,
    *,
    patience: float = _BEAT,
    order: StartOrder | None = None,
) -> T:
    """Run `fn` in a worker thread, with the caller's context variables.

    A cancelled caller waits for the thread, a beat if nothing else is said; then it goes, and the result is dropped.

    Args:
        loop: the running event loop.
        fn: what to run.
        name: what to call it in the warning about a thread that goes on.
        owner: told of such a thread.
        thread: where to run it; `None` for any that is free.
        patience: how many seconds a cancelled caller waits for it.
        order: in which the functions begin that share it.
    """
    run = loop.run_in_daemon if thread is None else thread.run
    ticket = None if order is None else order.ticket()
    job = _Job(fn, name, ticket)
    scope = CancelScope()
    try:
        with scope:
            return await run(job.run, scope)
    except loop.cancelled_class:
        # Not for ourselves, we are leaving: it makes `check_cancelled()` raise in the thread on asyncio.
        scope.cancel()
        if not job.drop():
            try:
                await _wait_for(loop, job, patience)
            finally:  # also when the grace is shorter
                if job.call_after(None):
                    _abandon(job, owner)
        raise
    finally:
        if ticket is not None and job.drop():  # it never begins
            ticket.pass_on()
    raise AssertionError("a scope that nobody cancels swallowed a cancellation")


_left: dict[_Job[Any], ThreadOwner] = {}
"""The jobs that go on although nobody waits for them."""

after_fork_in_child(_left.clear)


def _abandon(job: _Job[T], owner: ThreadOwner) -> None:
    owner.thread_abandoned()
    _left[job] = owner
    if not job.call_after(partial(_come_back, job)):
        _come_back(job)
        return
    # Last, because it raises where warnings are errors, and the places have to come back there too.
    warnings.warn(
        f"the worker thread of {job.name} goes on after its call has ended; a sync function can be stopped only if "
        "it asks anyio.from_thread.check_cancelled() from time to time",
        AbandonedThreadWarning,
        stacklevel=2,
    )


def _come_back(job: _Job[Any]) -> None:
    _left.pop(job).thread_ended()


@atexit.register
def _tell_what_is_lost() -> None:
    """Say once, in one line, what a process that ends takes with it: nobody waits for these threads."""
    now = time.monotonic()
    lost = [f"{job.name}, which had run for {now - job.since:.1f} s" for job in list(_left)]
    if lost:
        _log.warning(
            "the process ends, and with it work that was still going on in worker threads: %s", "; ".join(lost)
        )


async def _wait_for(loop: EventLoop, job: _Job[T], seconds: float) -> None:
    wakeup: Wakeup = loop.wakeup()
    if job.call_after(wakeup.set):
        with loop.shield(loop.now() + seconds):
            await wakeup.wait()
