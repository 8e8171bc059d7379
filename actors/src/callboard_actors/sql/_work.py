"""Work of a database in a worker thread that can be stopped from outside, and is never left alone."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Generic, Literal, Protocol, TypeVar

import anyio
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

T = TypeVar("T")

_LATE = 0.5
"""Seconds after its time in which a database may still say by itself that the time is over."""
_PATIENCE = 3.0
"""Seconds that a server has to heed a cancel, before its connection is cut."""


class Stop(Protocol):
    """How to end what a connection does at the moment; from any thread."""

    def cancel(self) -> None:
        """Ask the database to."""
        ...

    def cut(self) -> None:
        """Do without the database; it may be away."""
        ...


class Job:
    """One statement's time, and whether it has been stopped.

    Args:
        seconds: that it may take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self.stopped: Literal["late", "cancelled"] | None = None
        self._stop: Stop | None = None
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """How many seconds the job has left, and never none."""
        return max(0.001, self.until - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether whatever runs for it has to end."""
        return self.stopped is not None or time.monotonic() > self.until

    @contextmanager
    def stoppable(self, stop: Stop) -> Generator[None]:
        """Let the block be ended from outside; once it is left, no cancel is sent any more.

        Raises:
            InterruptedError: it has been already.
        """
        with self._lock:
            if self.stopped is not None:
                raise InterruptedError("it was stopped before it began")
            self._stop = stop
        try:
            yield
        finally:
            with self._lock:
                self._stop = None

    def stop(self, reason: Literal["late", "cancelled"]) -> None:
        """End it; may wait for the server to have heard it."""
        with self._lock:
            self.stopped = self.stopped or reason
            if self._stop is not None:
                self._stop.cancel()

    def cut(self) -> None:
        """End it without the server."""
        with self._lock:
            if self._stop is not None:
                self._stop.cut()


class _Run(Generic[T]):
    """A job in its thread."""

    def __init__(self, work: Callable[[Job], T], job: Job) -> None:
        self.job = job
        self._work = work
        self._found: T
        self._error: Exception | None = None
        self._ended = anyio.Event()

    async def in_thread(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                self._found = await run_sync(self._work, self.job, limiter=CapacityLimiter(1))
            except Exception as error:
                self._error = error
            finally:
                self._ended.set()

    async def until_ended(self) -> None:
        """Wait for it, and stop it when its time is over or nobody wants it any more."""
        try:
            with anyio.move_on_after(self.job.seconds + _LATE):
                await self._ended.wait()
        except anyio.get_cancelled_exc_class():
            await self._stopped("cancelled")
            raise
        await self._stopped("late")

    async def _stopped(self, reason: Literal["late", "cancelled"]) -> None:
        if self._ended.is_set():
            return
        with anyio.CancelScope(shield=True):
            await run_sync(self.job.stop, reason, limiter=CapacityLimiter(1))
            with anyio.move_on_after(_PATIENCE):
                await self._ended.wait()
            if not self._ended.is_set():
                self.job.cut()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._found


async def run(work: Callable[[Job], T], seconds: float) -> T:
    """Do work in a worker thread; when this ends, it has ended.

    Args:
        work: is given its job, by which it can be stopped.
        seconds: that it may take. Then, and when the caller is cancelled, the database is told to end it.

    Raises:
        Exception: what the work raises.
    """
    going = _Run(work, Job(seconds))
    # The thread is waited for in a task of its own: on asyncio a cancel from outside any scope would leave it alone.
    async with anyio.create_task_group() as group:
        group.start_soon(going.in_thread)
        await going.until_ended()
    return going.result()
