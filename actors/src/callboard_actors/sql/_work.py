"""Database work in a worker thread that can be stopped from outside, and protocol of a kind of database."""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

import anyio
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from callboard_actors.sql._rows import Caps, Rows

if TYPE_CHECKING:
    import sqlalchemy

# Work.

T = TypeVar("T")

_LATE = 0.5
"""Seconds after the timeout in which a database may still report the timeout itself."""
_PATIENCE = 3.0
"""Seconds that a server has to follow a cancel request before its connection is cut."""


class Stop(Protocol):
    """Way to stop a connection's current statement; may be called from any thread."""

    def cancel(self) -> None:
        """Ask the database to stop the statement."""
        ...

    def cut(self) -> None:
        """Stop the statement without the database, which may be unreachable."""
        ...


class Job:
    """Time of one statement, and its state of being stopped."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self.stopped: Literal["late", "cancelled"] | None = None
        self._stop: Stop | None = None
        # Held while a cancel is sent, so that it cannot hit the next statement of the connection; see `stoppable`.
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Seconds that the job has left; always more than zero."""
        return max(0.001, self.until - time.monotonic())

    @property
    def is_over(self) -> bool:
        """True if the work for this job must end."""
        return self.stopped is not None or time.monotonic() > self.until

    @contextmanager
    def stoppable(self, stop: Stop) -> Generator[None]:
        """Let the block be stopped from outside, and not after it; raise InterruptedError if it was stopped before."""
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
        """Stop the job; may wait until the server has received the request."""
        with self._lock:
            self.stopped = self.stopped or reason
            if self._stop is not None:
                self._stop.cancel()

    def cut(self) -> None:
        """Stop the job without the server."""
        with self._lock:
            if self._stop is not None:
                self._stop.cut()


class _Run(Generic[T]):
    """Job in its thread."""

    def __init__(self, work: Callable[[Job], T], job: Job) -> None:
        self.job = job
        self._work = work
        self._found: T
        self._error: Exception | None = None
        self._ended = anyio.Event()

    async def in_thread(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                # A limiter of its own: database work must not wait for other threads of the event loop.
                self._found = await run_sync(self._work, self.job, limiter=CapacityLimiter(1))
            except Exception as error:
                self._error = error
            finally:
                self._ended.set()

    async def until_ended(self) -> None:
        """Wait for the job, and stop it when its time is over or the caller is cancelled."""
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
            # In a thread, because sending a cancel request waits for the network.
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
    """Run work in a worker thread; the thread has ended when this returns or raises.

    After `seconds`, or when the caller is cancelled, the database is told to stop.
    """
    going = _Run(work, Job(seconds))
    # A task of its own waits for the thread: on asyncio, a cancel from outside any scope would abandon the thread.
    async with anyio.create_task_group() as group:
        group.start_soon(going.in_thread)
        await going.until_ended()
    return going.result()


# Kinds of databases.

Parameters = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Once:
    """Key by which the database recognises a statement that it has executed before."""

    table: str
    key: str


class Backend(Protocol):
    """Database with a pool of connections."""

    def check(self, job: Job) -> None:
        """Check that the database exists, and that its role cannot do more than it should.

        Raise SqlError with the problem and the remedy.
        """
        ...

    def reading(self, job: Job) -> "AbstractContextManager[sqlalchemy.Connection]":
        """Return a connection for reading, which is stopped with the job."""
        ...

    def query(self, statement: str, parameters: Parameters, caps: Caps, job: Job) -> Rows:
        """Run a statement that only reads, and return its rows. Raise SqlError if the statement writes, or fails."""
        ...

    def execute(self, statement: str, parameters: Parameters, caps: Caps, job: Job, once: Once | None) -> Rows:
        """Run one statement in a transaction of its own, and commit it.

        Raise SqlError if nothing was changed, or if the text says that this is unknown.
        """
        ...

    def row_estimates(self, connection: "sqlalchemy.Connection", tables: Sequence[str]) -> Mapping[str, str]:
        """Return rough row counts of tables, as far as they are known without counting everything."""
        ...

    def close(self) -> None:
        """Close the pools of connections; no other method is called afterwards."""
        ...
