"""Sync functions in worker threads, and the accounting of threads that run on after their call was cancelled.

A thread cannot be cancelled, so its owner is told when it runs on. Nested calls use separate limits for each depth.
Objects that must stay in one thread have a thread of their own.
"""

import atexit
import logging
import threading
import time
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from anyio import CancelScope
from anyio.lowlevel import EventLoopToken, current_token

from callboard._loops._current import current_loop
from callboard._loops._forks import after_fork_in_child
from callboard._loops._protocol import EventLoop, Wakeup
from callboard._loops._worker_threads import Job, run_job
from callboard.exceptions import AbandonedThreadWarning

T = TypeVar("T")

_log = logging.getLogger("callboard")

# Order of starts

_PREDECESSOR = 1.0
"""Maximum seconds that a thread waits for the previous function to begin; the system may start a thread late."""


class Ticket:
    """Position of one function in the order in which functions begin in their worker threads."""

    __slots__ = ("_lock", "_predecessor")

    def __init__(self, before: "Ticket | None") -> None:
        self._predecessor = before
        self._lock = threading.Lock()
        self._lock.acquire()  # released exactly once, by `let_next_begin`: a second release would raise

    def wait(self) -> None:
        """Wait in the worker thread until the previous function has begun, or will never begin."""
        before, self._predecessor = self._predecessor, None  # or each ticket would keep all its predecessors alive
        if before is not None:
            # Only this ticket waits for that lock. After the timeout the function begins out of order: a late start
            # is better than a call that hangs behind a thread that the system does not run.
            before._lock.acquire(timeout=_PREDECESSOR)

    def let_next_begin(self) -> None:
        """Let the next function begin. Call this once, when the ticket's own function begins or will never begin."""
        # The next thread needs the GIL, which this thread still has: so this function begins first.
        self._predecessor = None
        self._lock.release()


class StartOrder:
    """Order in which functions begin in their worker threads: the order of their tickets. Any thread may use it."""

    __slots__ = ("_last", "_lock")

    def __init__(self) -> None:
        self._last: Ticket | None = None
        self._lock = threading.Lock()

    def ticket(self) -> Ticket:
        """Return the ticket of the next function in the order."""
        with self._lock:
            ticket = self._last = Ticket(self._last)
            return ticket


# Thread of one owner


class OwnThread:
    """Daemon thread that runs one job after another; the first job starts it, `close()` ends it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._is_started = False
        self._token: EventLoopToken | None = None

    async def run(self, fn: Callable[[], T], scope: CancelScope) -> T:
        """Run `fn` in the thread after all earlier jobs; a cancelled caller returns at once, and drops the result."""
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        loop, token = current_loop(), current_token()
        if loop.name == "trio":
            token = self._token = self._token or _token_for_own_threads(token)
        cancelled: list[BaseException] = []

        def job() -> T:
            _thread_state.cancelled = cancelled
            return fn()

        try:
            return await run_job(self._give, job, scope, token, loop.wakeup())
        except loop.cancelled_class as cancellation:
            # The job stays in the queue, or runs on. On trio, `check_cancelled()` in the thread reads this list.
            cancelled.append(cancellation)
            raise

    def _give(self, job: Job) -> None:
        def run() -> None:
            job()()

        self._jobs.put(run)

    def close(self, last: Callable[[], object] | None = None) -> None:
        """Ask the thread to run its queued jobs, then the function `last`, and then to end; return at once."""
        if last is not None:
            self._jobs.put(last)
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # of the function `last`: a job hands its error to its caller
                _log.exception("%r failed, in a thread that nobody waited for", job)
            del job  # or the thread keeps the last result alive while it waits for the next job


class _ThreadState(threading.local):
    """Thread-local state of the job that runs in an `OwnThread`."""

    cancelled: list[BaseException]
    """Cancellation of the job's caller, as the only element; empty if the caller was not cancelled."""


_thread_state = _ThreadState()


def _token_for_own_threads(token: EventLoopToken) -> EventLoopToken:
    """Return a token with which `anyio.from_thread` works in callboard's threads; trio's own token does not."""
    backend, native = token.backend_class, token.native_token

    class Backend(backend):  # type: ignore[misc, valid-type]  # the backend is known when it runs
        @classmethod
        def check_cancelled(cls) -> None:
            if _thread_state.cancelled:
                raise _thread_state.cancelled[0]

        @classmethod
        def run_async_from_thread(cls, func: Any, args: Any, token: object) -> Any:
            return super().run_async_from_thread(func, args, native if token is None else token)

        @classmethod
        def run_sync_from_thread(cls, func: Any, args: Any, token: object) -> Any:
            return super().run_sync_from_thread(func, args, native if token is None else token)

    return EventLoopToken(Backend, native)


# Worker threads

_THREAD_PATIENCE = 0.1
"""Seconds that a cancelled caller waits for its thread, which may call `anyio.from_thread.check_cancelled()`."""


class _Job(Generic[T]):
    """Function that runs in a worker thread, with the state that the thread and the event loop share."""

    __slots__ = ("_begun", "_end_callback", "_ended", "_fn", "_lock", "_ticket", "name", "since")

    # `_begun`, `_ended` and `_end_callback` change only under `_lock`. So either the loop learns that the function has
    # ended, or the thread finds the callback: never neither, and never both.

    def __init__(self, fn: Callable[[], T], name: str, ticket: Ticket | None) -> None:
        self.name = name
        self._ticket = ticket
        self.since = time.monotonic()
        """Time at which the job was submitted (`time.monotonic()`, because loop time may jump on a test clock)."""
        self._fn = fn
        self._lock = threading.Lock()
        self._begun = self._ended = False
        self._end_callback: Callable[[], None] | None = None

    def run(self) -> T:
        ticket = self._ticket
        if ticket is not None:
            ticket.wait()
        with self._lock:
            if self._ended:
                raise CancelledError  # dropped before it began: its caller is gone, so no code sees this error
            self._begun = True
        try:
            if ticket is not None:
                ticket.let_next_begin()  # no code between this line and the function: it could lose the GIL
            return self._fn()
        except StopIteration as exc:
            # A coroutine cannot raise StopIteration: the awaiting code would take it for a return.
            raise RuntimeError(f"{self._fn!r} raised StopIteration") from exc
        finally:
            with self._lock:
                self._ended = True
                end_callback = self._end_callback
            if end_callback is not None:
                end_callback()  # outside of the lock: it may call code of the owner

    def prevent_start(self) -> bool:
        """Prevent the function from running; return `False` if it has already begun."""
        with self._lock:
            self._ended = self._ended or not self._begun
            return not self._begun

    def set_end_callback(self, callback: Callable[[], None] | None) -> bool:
        """Set the callback that the thread calls after the function; return `False` if the function has ended."""
        with self._lock:
            self._end_callback = callback
            return not self._ended


class ThreadOwner(Protocol):
    """Protocol with callbacks for a worker thread that runs on after its call was cancelled."""

    def thread_abandoned(self) -> None:
        """React to a cancelled call that no longer waits for its worker thread; called in the event loop."""
        ...

    def thread_ended(self) -> None:
        """React to the end of an abandoned thread; called in that thread or in the event loop."""
        ...


async def run_in_thread(
    loop: EventLoop,
    fn: Callable[[], T],
    name: str,
    owner: ThreadOwner,
    thread: OwnThread | None = None,
    *,
    patience: float = _THREAD_PATIENCE,
    order: StartOrder | None = None,
) -> T:
    """Run `fn` in a worker thread; after a cancellation, wait `patience` seconds for the thread, then abandon it."""
    run = loop.run_in_daemon if thread is None else thread.run
    # Functions with the same `order` begin in the order of their submission.
    ticket = None if order is None else order.ticket()
    job = _Job(fn, name, ticket)
    scope = CancelScope()
    try:
        with scope:
            return await run(job.run, scope)
    except loop.cancelled_class:
        # This task is already cancelled; cancelling the scope makes `check_cancelled()` raise in the thread on asyncio.
        scope.cancel()
        if not job.prevent_start():
            try:
                await _wait_for_job(loop, job, patience)
            finally:  # the wait itself may be cancelled, if the caller's grace is shorter than `patience`
                if job.set_end_callback(None):  # still running
                    _abandon_thread(job, owner)
        raise
    finally:
        if (
            ticket is not None and job.prevent_start()
        ):  # the function never begins, so its thread cannot pass on the ticket
            ticket.let_next_begin()
    raise AssertionError("a scope that nobody cancels swallowed a cancellation")


_abandoned_jobs: dict[_Job[Any], ThreadOwner] = {}
"""Jobs whose threads run on although their calls have ended; added in event loops, removed in the threads."""

after_fork_in_child(_abandoned_jobs.clear)


def _abandon_thread(job: _Job[T], owner: ThreadOwner) -> None:
    # Both lines before `set_end_callback`: from then on the thread may call `_record_thread_end`, which needs the
    # entry, and `thread_ended` must come after `thread_abandoned`.
    owner.thread_abandoned()
    _abandoned_jobs[job] = owner
    if not job.set_end_callback(partial(_record_thread_end, job)):
        _record_thread_end(job)
        return
    # Last, because `warn` raises where warnings are errors, and the permits have to be released in that case, too.
    warnings.warn(
        f"the worker thread of {job.name} goes on after its call has ended; a sync function can be stopped only if "
        "it asks anyio.from_thread.check_cancelled() from time to time",
        AbandonedThreadWarning,
        stacklevel=2,
    )


def _record_thread_end(job: _Job[Any]) -> None:
    _abandoned_jobs.pop(job).thread_ended()


@atexit.register
def _log_lost_work() -> None:
    """Log one line about the abandoned threads that end with the process."""
    now = time.monotonic()
    lost = [f"{job.name}, which had run for {now - job.since:.1f} s" for job in list(_abandoned_jobs)]
    if lost:
        _log.warning(
            "the process ends, and with it work that was still going on in worker threads: %s", "; ".join(lost)
        )


async def _wait_for_job(loop: EventLoop, job: _Job[T], seconds: float) -> None:
    wakeup: Wakeup = loop.wakeup()
    if job.set_end_callback(wakeup.set):
        with loop.shield(loop.now() + seconds):
            await wakeup.wait()


_depths: ContextVar[tuple[object, ...]] = ContextVar("callboard_levels_held", default=())


# A sync function in a worker thread may run an agent and wait for it. If the agent's functions shared its thread limit,
# all permits could be held by functions that wait for a permit. So each depth of nesting has a limit of its own.
class PerDepth(Generic[T]):
    """Equal resources, such as thread limits, one for each depth of nested calls; `make` creates them on demand."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._resources: list[T] = []
        self._lock = threading.Lock()

    def here(self) -> T:
        """Return the resource for the current depth of nested calls."""
        level = _depths.get().count(self)
        if level >= len(self._resources):
            # Checked again under the lock: two threads must not create two limits for one depth.
            with self._lock:
                while level >= len(self._resources):
                    self._resources.append(self._make())
        return self._resources[level]

    @contextmanager
    def below(self) -> Generator[None]:
        """Run a `with` block, and the code that it starts, one level deeper in the nesting of calls."""
        token = _depths.set((*_depths.get(), self))
        try:
            yield
        finally:
            _depths.reset(token)
