"""Execution of database statements in worker threads, with time limits, and the `Backend` protocol."""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import anyio
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from callboard_actors.sql._rows import Caps, Rows

if TYPE_CHECKING:
    import sqlalchemy

# Work.

T = TypeVar("T")

_LATE = 0.5
"""Additional seconds after the timeout in which the database itself may still report the timeout."""
_PATIENCE = 3.0
"""Maximum seconds for a server to follow a cancel request; then its connection is cut."""


class Job:
    """Time limit of one database statement, with methods by which other threads can stop the statement."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self.stopped: Literal["late", "cancelled"] | None = None
        self._cancel: Callable[[], object] | None = None
        self._cut: Callable[[], object] | None = None
        # Held while a cancel is sent, so that it cannot hit the next statement of the connection; see `stoppable`.
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Seconds until the time limit; always more than zero."""
        return max(0.001, self.until - time.monotonic())

    @property
    def is_over(self) -> bool:
        """True if the statement must end, because it was stopped or its time limit has passed."""
        return self.stopped is not None or time.monotonic() > self.until

    @contextmanager
    def stoppable(self, cancel: Callable[[], object], cut: Callable[[], object] | None = None) -> Generator[None]:
        """Let other threads stop the statement of the `with` block: `stop()` calls `cancel`, `cut()` calls `cut`."""
        with self._lock:
            if self.stopped is not None:
                raise InterruptedError("it was stopped before it began")
            # `cancel` asks the database to stop the statement. `cut` needs no answer of the database, which may be
            # unreachable.
            self._cancel, self._cut = cancel, cut
        try:
            yield
        finally:
            with self._lock:
                self._cancel = self._cut = None

    def stop(self, reason: Literal["late", "cancelled"]) -> None:
        """Stop the statement. This may wait until the database server has received the request to cancel."""
        with self._lock:
            self.stopped = self.stopped or reason
            if self._cancel is not None:
                self._cancel()

    def cut(self) -> None:
        """Stop the statement by closing the connection, without a request to the database server."""
        with self._lock:
            if self._cut is not None:
                self._cut()


async def run(work: Callable[[Job], T], seconds: float) -> T:
    """Run database work in a thread, and stop it after `seconds`; return its result when the thread has ended."""
    job, ended = Job(seconds), anyio.Event()
    found: list[T] = []
    errors: list[Exception] = []

    async def in_thread() -> None:
        with anyio.CancelScope(shield=True):
            try:
                # A limiter of its own: database work must not wait for other threads of the event loop.
                found.append(await run_sync(work, job, limiter=CapacityLimiter(1)))
            except Exception as error:  # raised below: a task group would wrap it
                errors.append(error)
            finally:
                ended.set()

    # A task of its own waits for the thread: on asyncio, a cancel from outside any scope would abandon the thread.
    async with anyio.create_task_group() as group:
        group.start_soon(in_thread)
        try:
            with anyio.move_on_after(seconds + _LATE):
                await ended.wait()
        except anyio.get_cancelled_exc_class():
            await _stop(job, ended, "cancelled")
            raise
        await _stop(job, ended, "late")
    if errors:
        raise errors[0]
    return found[0]


async def _stop(job: Job, ended: anyio.Event, reason: Literal["late", "cancelled"]) -> None:
    if ended.is_set():
        return
    with anyio.CancelScope(shield=True):
        # In a thread, because sending a cancel request waits for the network.
        await run_sync(job.stop, reason, limiter=CapacityLimiter(1))
        with anyio.move_on_after(_PATIENCE):
            await ended.wait()
        if not ended.is_set():
            job.cut()


# Kinds of databases.

Parameters = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Once:
    """Idempotency key of a statement. A table stores the keys, so that a repeated statement is not executed again."""

    table: str
    """Name of the table with the keys; it was checked, so that it needs no escapes within quotes."""
    key: str

    def begin(self, execute: Callable[..., Any], mark: str) -> Rows | None:
        """Store a statement's idempotency key; return `None`, or the former result if the key was stored before."""
        # Before the statement: another process with the same key waits at this insert until this transaction has ended.
        insert = f'INSERT INTO "{self.table}" (key, at) VALUES ({mark}, CURRENT_TIMESTAMP) ON CONFLICT DO NOTHING'  # noqa: S608
        if execute(insert, [self.key]).rowcount:
            return None
        select = f'SELECT changed FROM "{self.table}" WHERE key = {mark}'  # noqa: S608 (the name was checked)
        found = execute(select, [self.key]).fetchone()
        # The caller must not run the statement now.
        return Rows((), (), changed=found and found[0], note="It had been executed before, by this call.")

    def end(self, execute: Callable[..., Any], mark: str, changed: int | None) -> None:
        """Store the number of changed rows with the key; `changed` is `None` if the database reports no number."""
        update = f'UPDATE "{self.table}" SET changed = {mark} WHERE key = {mark}'  # noqa: S608 (the name was checked)
        execute(update, [changed, self.key])


class Backend(Protocol):
    """Interface to one kind of database, with a pool of connections."""

    def check(self, job: Job) -> None:
        """Raise SqlError, with a remedy, if the database does not exist or the login role has too many permissions."""
        ...

    def reading(self, job: Job) -> "AbstractContextManager[sqlalchemy.Connection]":
        """Return a context manager with a connection for reading. If `job` is stopped, the current statement stops."""
        ...

    def query(self, statement: str, parameters: Parameters, caps: Caps, job: Job) -> Rows:
        """Run a statement that only reads, and return its rows. Raise SqlError if the statement writes, or fails."""
        ...

    def execute(self, statement: str, parameters: Parameters, caps: Caps, job: Job, once: Once | None) -> Rows:
        """Run a statement that changes the database, and commit it; return its rows.

        If it fails, the text of the SqlError says whether nothing was changed, or whether that is unknown.
        """
        ...

    def row_estimates(self, connection: "sqlalchemy.Connection", tables: Sequence[str]) -> Mapping[str, str]:
        """Return approximate row counts as texts, by table name; large tables are not counted completely."""
        ...

    def close(self) -> None:
        """Close the pools of connections; no other method is called afterwards."""
        ...
