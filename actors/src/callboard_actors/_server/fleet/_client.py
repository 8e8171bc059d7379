"""Client of one fleet member: a thread with an asyncio loop that holds the connection to the server.

It renews the lease and receives replies even while the event loops of the process, asyncio or trio, are busy.
"""

import asyncio
import atexit
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from callboard import StorageError
from callboard_actors._server._client import AwayError, worded
from callboard_actors._server.fleet._lease import BEATS, Lease
from callboard_actors._server.fleet._transport import FleetTransport
from callboard_actors._util._boot_clock import now

T = TypeVar("T")

_logger = logging.getLogger("callboard_actors.fleet")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two attempts to connect; doubled after each failure."""
_AT_ONCE = 16
"""Requests to the server at the same time, each of which may need a connection. Heartbeats are not counted."""
_TO_LEAVE = 2.0
"""Seconds at exit to tell the server that all keys are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Options of a fleet member.

    Args:
        where: the server's address for errors and logs, without a password.
        lease: seconds without a heartbeat after which a member counts as dead.
        patience: seconds that asks wait during an outage; `None` for as long as their budgets allow.
    """

    where: str
    lease: float
    patience: float | None


class FleetClient:
    """Client that keeps a member registered at the server, and lends its connection to other parts of the member.

    Args:
        member: the member's id.
        line: makes a connection that is not open yet.
        terms: options of the member.
        on_mail: called with each message to this member.
        on_lost: called with the reason when this member no longer owns any key.
        on_beat: called after each heartbeat.
        on_failure: called with the error when the server cannot be used.
    """

    def __init__(
        self,
        member: str,
        line: Callable[[], FleetTransport],
        terms: FleetOptions,
        *,
        on_mail: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        on_beat: Callable[[], Awaitable[None]],
        on_failure: Callable[[StorageError], None],
    ) -> None:
        self.member = member
        self.terms = terms
        self._make = line
        self._on_mail, self._on_lost, self._on_beat, self._on_failure = on_mail, on_lost, on_beat, on_failure
        # Written in the client's thread only; `is_up` may read it in another one.
        self._line: FleetTransport | None = None
        self._lease = Lease(terms.lease)  # changed in the client's thread; `is_safe` may read it in any thread
        self._is_closing = False
        self._away_since: float | None = None
        # Strong references: the loop itself keeps only weak ones to its tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="callboard-fleet", daemon=True)
        self._thread.start()
        # `do()` uses `self._loop`, which the thread sets before it sets `_ready`.
        self._ready.wait()
        _open.add(self)

    def is_safe(self, era: int) -> bool:
        """Return whether keys acquired in an era cannot have another owner yet; may be called from any thread."""
        return self._lease.is_safe(era)

    @property
    def era(self) -> int:
        """Number of times that this member lost all its keys."""
        return self._lease.era

    def do(self, what: Callable[[], object]) -> bool:
        """Run a function in the client's thread soon; return False if the thread has ended."""
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return False
        return True

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task in the client's loop; called in the client's thread."""
        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("%s: a bug of callboard", self.terms.where, exc_info=error)

    async def on_transport(self, work: Callable[[FleetTransport], Awaitable[T]]) -> T:
        """Send a request and repeat it until it is answered; raise StorageError if it is refused. Client's thread only.

        A request may therefore arrive more than once: each operation of `FleetTransport` tolerates that.
        """
        while True:
            await self._up.wait()
            line = None
            try:
                async with self._room:
                    # Waiting for the semaphore may take long: by now the connection may be closed, or another one.
                    if (line := self._line) is not None:
                        return await work(line)
            except AwayError as error:
                # A late error of an earlier connection must not end the current one.
                if line is self._line:
                    self._note_down(error)

    def close(self) -> None:
        """Leave the fleet and end; returns at once. May be called from any thread."""
        self.do(self._note_closing)

    @property
    def is_up(self) -> bool:
        """Return whether the server can be reached, as far as known."""
        return self._line is not None and self._up.is_set()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait at most `_TO_LEAVE` for the thread to end. Must not be called in that thread."""
        self._thread.join(_TO_LEAVE)

    def _note_closing(self) -> None:
        self._is_closing = True
        self._closing.set()

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._up, self._down, self._closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._ready.set()
        # A task of its own: keys are given up in time also while a connection attempt hangs.
        self.start(self._watch_lease)
        pause = _FIRST_PAUSE  # connected before: the first attempt after an outage comes soon
        while not self._is_closing:
            if await self._talk():
                pause = _FIRST_PAUSE
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        # Before the tasks are cancelled: from here on no key is safe, and the actors of all keys are told to end.
        self._lose("it has left its fleet")
        for task in self._tasks:
            task.cancel()
        # Last: asks that still wait fail, because no reply will be received any more.
        self._on_failure(StorageError(self.terms.where, "is asked no more: this process has left the fleet."))

    async def _talk(self) -> bool:
        """Stay connected until the connection breaks or the client closes; return whether a connection was made."""
        line = self._make()
        try:
            await line.open(self.member)
            await self._beat(line)  # registers the member: before that, the server would give it no key
            self._note_up(line)  # only now may `on_transport` use the connection
            await self._until_down(line)
            return True
        except (AwayError, TimeoutError) as error:
            self._note_down(error)
        except StorageError as error:
            self._on_failure(error)
        except Exception as error:  # a bug must not leave asks waiting for ever: treat it as an outage
            _logger.exception("%s: the connection broke", self.terms.where)
            self._note_down(error)
        finally:
            self._up.clear()  # before the wait below, so that no new request begins on this connection
            self._line = None
            await self._until_unused()
            await line.close()
        return False

    async def _until_unused(self) -> None:
        """Wait until no request uses the connection: a request on a closed Redis client would open a new connection."""
        # All slots acquired means that no request is running.
        for _ in range(_AT_ONCE):
            await self._room.acquire()
        for _ in range(_AT_ONCE):
            self._room.release()

    async def _until_down(self, line: FleetTransport) -> None:
        works = [self._keep_beating(line), self._hear(line), self._closing.wait(), self._down.wait()]
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # Raises the error of a heartbeat or of the mail, which `_talk` treats as a broken connection.
            for task in done:
                task.result()
            # Leaving frees all keys at once; without it they stay owned until the lease ends.
            if self._is_closing:
                with suppress(TimeoutError):
                    await asyncio.wait_for(line.leave(), _TO_LEAVE)
        finally:
            await _ended(tasks)

    async def _hear(self, line: FleetTransport) -> None:
        async for messages in line.mail():
            for one in messages:
                self._on_mail(one)

    async def _keep_beating(self, line: FleetTransport) -> None:
        while True:
            await asyncio.sleep(self.terms.lease / BEATS)
            await self._beat(line)
            # Runs between two heartbeats: the next one waits until the check of sent asks has ended.
            await self._on_beat()

    async def _beat(self, line: FleetTransport) -> None:
        # Read before sending: the server counts the lease from a later moment, so this side ends earlier.
        said_at = now()
        # A heartbeat that hangs is given up with its connection, so that another attempt can still save the lease.
        was_member = await asyncio.wait_for(line.beat(), self.terms.lease / BEATS)
        if not self._lease.renew(said_at, was_member=was_member):
            self._on_lost("the server has not heard of this process for too long")

    async def _watch_lease(self) -> None:
        """Give up all keys in time if the lease cannot be renewed."""
        while True:
            if self._lease.is_lost():
                self._lose(f"{self.terms.where} could not be reached for too long")
            # Wakes when the safe time ends. L / 20 bounds the delay of the patience check, 10 ms the rate of checks.
            await asyncio.sleep(max(0.01, min(self._lease.safe_for(), self.terms.lease / 20)))
            self._refuse_if_away()

    def _lose(self, reason: str) -> None:
        # First: from here on `is_safe` denies every write, whatever the callback below takes.
        self._lease.lose()
        self._on_lost(reason)

    def _refuse_if_away(self) -> None:
        patience = self.terms.patience
        # Asks that were already sent keep waiting: their outcome is decided when the server is back.
        if self._away_since is not None and patience is not None and now() > self._away_since + patience:
            self._on_failure(StorageError(self.terms.where, f"could not be reached for {patience:g} s."))

    def _note_up(self, line: FleetTransport) -> None:
        if self._away_since is not None:
            _logger.warning("%s: reached again", self.terms.where)
        self._away_since = None
        self._line = line
        self._down.clear()
        self._up.set()

    def _note_down(self, error: Exception) -> None:
        self._up.clear()
        self._down.set()
        # Failed attempts in a row are one outage: its start and its warning belong to the first of them.
        if self._away_since is None and not self._is_closing:
            self._away_since = now()
            _logger.warning("%s: cannot be reached (%s); asks of other processes wait", self.terms.where, worded(error))


async def _ended(tasks: "Sequence[asyncio.Future[Any]]") -> None:
    """Cancel tasks until they have ended; the clients of Redis and PostgreSQL sometimes swallow a cancellation."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.05)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio would log it as never retrieved


_open: "weakref.WeakSet[FleetClient]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Give back the keys of a process that exits."""
    clients = list(_open)
    # All are told before the first is waited for: their time to leave runs in parallel.
    for client in clients:
        client.close()
    for client in clients:
        client.join()
