"""One member of a fleet: a thread with one event loop, which speaks to the server for it.

So leases are renewed and replies are heard whatever the event loops of the process do, be it asyncio or trio.
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
from callboard_actors._boot_clock import now
from callboard_actors._clerk import AwayError, worded
from callboard_actors._fleet._lease import BEATS, Lease
from callboard_actors._fleet._line import FleetLine

T = TypeVar("T")

_logger = logging.getLogger("callboard_actors.fleet")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two attempts to reach a server."""
_AT_ONCE = 16
"""Words to the server, for each of which it may need a connection; a sign of life waits for none of them."""
_TO_LEAVE = 2.0
"""Seconds to tell the server that all keys are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On which terms a member takes part.

    Args:
        where: the server, for errors and logs: without a password.
        lease: seconds without a word after which a member counts as dead.
        patience: seconds for which asks wait while the server is away; `None` for as long as they may.
    """

    where: str
    lease: float
    patience: float | None


class Desk:
    """Keeps a member at its server, and lets others use the connection.

    Args:
        member: the id of the member.
        line: makes a connection that is not open yet.
        terms: how it takes part.
        on_mail: told of letters.
        on_lost: told why nothing is owned any more.
        on_beat: told after each sign of life.
        on_failure: told why nobody can be asked.
    """

    def __init__(
        self,
        member: str,
        line: Callable[[], FleetLine],
        terms: Terms,
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
        self._line: FleetLine | None = None
        self._lease = Lease(terms.lease)
        self._is_closing = False
        self._away_since: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="callboard-fleet", daemon=True)
        self._thread.start()
        self._ready.wait()
        _open.add(self)

    def is_safe(self, era: int) -> bool:
        """Return whether nobody else can own yet what was owned in an era; from any thread."""
        return self._lease.is_safe(era)

    @property
    def era(self) -> int:
        """Number of times that all keys were lost."""
        return self._lease.era

    def do(self, what: Callable[[], object]) -> bool:
        """Have something done in the thread; False if it has ended, and never will."""
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return False
        return True

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task in the loop of the desk; called in its thread."""
        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("%s: a bug of callboard", self.terms.where, exc_info=error)

    async def on_line(self, work: Callable[[FleetLine], Awaitable[T]]) -> T:
        """Say something to the server, again and again until it has answered; in the thread.

        Raises:
            StorageError: if it refuses.
        """
        while True:
            await self._up.wait()
            line = None
            try:
                async with self._room:
                    if (line := self._line) is not None:
                        return await work(line)
            except AwayError as error:
                if line is self._line:
                    self._note_down(error)

    def close(self) -> None:
        """Have it leave the fleet, and end; from any thread, and waits for nothing."""
        self.do(self._note_closing)

    @property
    def is_up(self) -> bool:
        """Whether the server can be reached, as far as is known."""
        return self._line is not None and self._up.is_set()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait until it has ended, if not for ever; from any thread but its own."""
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
        self.start(self._watch_lease)
        pause = _FIRST_PAUSE
        while not self._is_closing:
            if await self._talk():
                pause = _FIRST_PAUSE
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._lose("it has left its fleet")
        for task in self._tasks:
            task.cancel()
        self._on_failure(StorageError(self.terms.where, "is asked no more: this process has left the fleet."))

    async def _talk(self) -> bool:
        """Be at the server until the connection breaks; says whether there was one."""
        line = self._make()
        try:
            await line.open(self.member)
            await self._beat(line)
            self._note_up(line)
            await self._until_down(line)
            return True
        except (AwayError, TimeoutError) as error:
            self._note_down(error)
        except StorageError as error:
            self._on_failure(error)
        except Exception as error:  # a bug of ours or of a client must not leave anybody waiting
            _logger.exception("%s: the connection broke", self.terms.where)
            self._note_down(error)
        finally:
            self._up.clear()
            self._line = None
            await self._until_unused()
            await line.close()
        return False

    async def _until_unused(self) -> None:
        """Wait until nobody says anything any more: what is said by a closed connection would open one."""
        for _ in range(_AT_ONCE):
            await self._room.acquire()
        for _ in range(_AT_ONCE):
            self._room.release()

    async def _until_down(self, line: FleetLine) -> None:
        works = [self._keep_beating(line), self._hear(line), self._closing.wait(), self._down.wait()]
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if self._is_closing:
                with suppress(TimeoutError):
                    await asyncio.wait_for(line.leave(), _TO_LEAVE)
        finally:
            await _ended(tasks)

    async def _hear(self, line: FleetLine) -> None:
        async for letters in line.mail():
            for one in letters:
                self._on_mail(one)

    async def _keep_beating(self, line: FleetLine) -> None:
        while True:
            await asyncio.sleep(self.terms.lease / BEATS)
            await self._beat(line)
            await self._on_beat()

    async def _beat(self, line: FleetLine) -> None:
        said_at = now()
        # One that hangs is given up with its connection, so that another attempt can save the lease.
        was_member = await asyncio.wait_for(line.beat(), self.terms.lease / BEATS)
        if not self._lease.renew(said_at, was_member=was_member):
            self._on_lost("the server has not heard of this process for too long")

    async def _watch_lease(self) -> None:
        """Give up what is owned in time, if the lease cannot be renewed."""
        while True:
            if self._lease.is_lost():
                self._lose(f"{self.terms.where} could not be reached for too long")
            await asyncio.sleep(max(0.01, min(self._lease.safe_for(), self.terms.lease / 20)))
            self._refuse_if_away()

    def _lose(self, reason: str) -> None:
        self._lease.lose()
        self._on_lost(reason)

    def _refuse_if_away(self) -> None:
        patience = self.terms.patience
        if self._away_since is not None and patience is not None and now() > self._away_since + patience:
            self._on_failure(StorageError(self.terms.where, f"could not be reached for {patience:g} s."))

    def _note_up(self, line: FleetLine) -> None:
        if self._away_since is not None:
            _logger.warning("%s: reached again", self.terms.where)
        self._away_since = None
        self._line = line
        self._down.clear()
        self._up.set()

    def _note_down(self, error: Exception) -> None:
        self._up.clear()
        self._down.set()
        if self._away_since is None and not self._is_closing:
            self._away_since = now()
            _logger.warning("%s: cannot be reached (%s); asks of other processes wait", self.terms.where, worded(error))


async def _ended(tasks: "Sequence[asyncio.Future[Any]]") -> None:
    """Cancel tasks until they have ended: clients of servers let a cancellation fall at times."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.05)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # it has been seen


_open: "weakref.WeakSet[Desk]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Give back the keys of a process that comes to its end."""
    desks = list(_open)
    for desk in desks:
        desk.close()
    for desk in desks:
        desk.join()
