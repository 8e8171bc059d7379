"""One process at a server that keeps limits: a thread with one event loop, which serves all others of the process.

So a place can be asked for, and given back, from asyncio, trio and threads alike, without waiting: a call that is
cancelled leaves at once, and no event loop has a connection to lose. What is said within one round trip goes
together.
"""

import asyncio
import atexit
import logging
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import uuid4

from callboard import StorageError
from callboard.limits import Wanted
from callboard_actors._places._gate import Gate
from callboard_actors._places._line import AwayError, Line, Numbers
from callboard_actors._places._share import Away, Share
from callboard_actors._places._stay import HeldStay

_logger = logging.getLogger("callboard_actors.limits")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two attempts to reach a server."""
_LOOK = 0.05
"""Seconds between two looks at those who wait, while the server is away."""
_TO_LEAVE = 1.0
"""Seconds that the end of a process waits for the server to hear that its places are free."""


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms a desk serves.

    Args:
        where: the server, for errors and logs: without a password.
        lease: seconds without a word after which a process counts as dead.
        away: what becomes of calls while the server is away.
        patience: seconds for which it may be away before they are refused, or given a share.
        share: of this process.
    """

    where: str
    lease: float
    away: Away
    patience: float
    share: Share


class Desk:
    """Asks a server for places, on behalf of all who want some in this process.

    Args:
        line: makes a connection that is not open yet.
        terms: how it serves.
    """

    def __init__(self, line: Callable[[], Line], terms: Terms) -> None:
        self.pid = os.getpid()
        self._line = line
        self._terms = terms
        self._lock = threading.Lock()
        self._posted: deque[Callable[[], None]] = deque()
        self._is_called = self._is_closing = self._has_ended = False
        self._gates: dict[str, Gate] = {}
        self._numbers = count(1)
        self._client = uuid4().hex[:16]
        self._away_since: float | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="callboard-limits", daemon=True)
        self._thread.start()
        self._ready.wait()
        _open.add(self)

    def ask(self, gate: str, wanted: Wanted, on_answer: Callable[[], object]) -> HeldStay:
        """Ask for a place; from any thread."""
        stay = HeldStay(wanted, on_answer, self._post)
        if not self._post(lambda: self._enter(gate, stay)):  # closed by another thread, meanwhile
            stay.refuse(self._closed())
        return stay

    def dismiss(self) -> None:
        """Have it tell the server what that has to hear, and end; waits for nothing."""
        if self.pid == os.getpid() and self._thread.is_alive():
            self._post(self._note_closing)

    def close(self) -> None:
        """Have it end, and wait for that, if not for ever; from any thread but its own."""
        self.dismiss()
        if self.pid == os.getpid():
            self._thread.join(_TO_LEAVE)

    def _note_closing(self) -> None:
        self._is_closing = True

    def _post(self, what: Callable[[], None]) -> bool:
        """Have something done; `False` if nobody is there any more to do it."""
        with self._lock:
            if self._has_ended:
                return False
            self._posted.append(what)
            is_called, self._is_called = self._is_called, True
            try:
                if not is_called:
                    self._loop.call_soon_threadsafe(self._attend)
            except RuntimeError:  # the loop is closed
                self._has_ended = True
            return not self._has_ended

    def _attend(self, *, is_last: bool = False) -> None:
        with self._lock:
            posted, self._posted = self._posted, deque()
            self._is_called = False
            self._has_ended = is_last
        for what in posted:
            what()
        self._called.set()

    def _closed(self) -> StorageError:
        return StorageError(self._terms.where, "is asked no more: the store was closed while calls waited.")

    def _enter(self, name: str, stay: HeldStay) -> None:
        wanted = stay.wanted
        gate = self._gates.get(name)
        numbers = Numbers.of(wanted.limit, self._terms.lease)
        if gate is None:
            gate = self._gates[name] = Gate(name, wanted, numbers, self._terms.where)
        stay.gate, stay.id = gate, f"{self._client}.{next(self._numbers)}"
        if gate.numbers != numbers:
            reason = (
                f"is asked for the limit {name!r} with {gate.numbers.text} and with {numbers.text}. Give each a name"
            )
            stay.refuse(StorageError(self._terms.where, reason + " of its own."))
        else:
            gate.enter(stay)

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._called = asyncio.Event()
        self._ready.set()
        pause = _FIRST_PAUSE
        while not self._is_closing:
            if not self._gates:  # nothing to be said
                await self._until(math.inf)
                continue
            line = self._line()
            try:
                await self._hold_out(line.open(self._client))
                self._note_reached()
                pause = _FIRST_PAUSE
                await self._talk(line)
            except AwayError as error:
                self._note_away(error)
            except StorageError as error:
                self._refuse_all(error)
            except Exception as error:  # a bug of ours or of a client must not leave anybody waiting
                _logger.exception("%s: the connection broke", self._terms.where)
                self._note_away(error)
            finally:
                await line.close()
                for gate in self._gates.values():
                    gate.forget_line()
            if not self._is_closing:
                with suppress(AwayError):
                    await self._hold_out(asyncio.sleep(pause))
                pause = min(2 * pause, _LONGEST_PAUSE)
        self._attend(is_last=True)
        self._refuse_all(self._closed())

    async def _talk(self, line: Line) -> None:
        """Say what there is to be said, and listen, until the line breaks."""
        listening = asyncio.ensure_future(self._listen(line))
        listening.add_done_callback(lambda _: self._called.set())
        try:
            while not listening.done():
                due = await self._say_what_is_due(line)
                if self._is_closing and due > self._loop.time():
                    return
                await self._until(due)
            listening.result()
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError, AwayError, StorageError):
                await listening

    async def _listen(self, line: Line) -> None:
        async for name, number, token in line.heard():
            if (gate := self._gates.get(name)) is not None:
                gate.note_heard(number, token)
        raise AwayError("it says no more")

    async def _say_what_is_due(self, line: Line) -> float:
        """Say it; returns when there is more."""
        now = self._loop.time()
        for gate in [one for one in self._gates.values() if one.is_over(now)]:
            del self._gates[gate.name]
        due = [gate for gate in self._gates.values() if gate.due(now) <= now]
        if due:
            steps = [gate.step(now) for gate in due]
            for gate, answer in zip(due, await line.say(steps), strict=True):
                gate.take(answer, self._loop.time())
        return min((gate.due(now) for gate in self._gates.values()), default=math.inf)

    async def _until(self, when: float) -> None:
        """Wait until then, or until somebody calls."""
        if when > self._loop.time():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if math.isinf(when) else when):
                    await self._called.wait()
        self._called.clear()

    async def _hold_out(self, what: Coroutine[Any, Any, None]) -> None:
        """Look after those who wait while something is tried."""
        trying = asyncio.ensure_future(what)
        try:
            while not trying.done():
                self._look_after_waiting()
                await asyncio.wait([trying], timeout=_LOOK)
                if self._is_closing:
                    raise AwayError("nobody asks any more")
            trying.result()
        finally:
            trying.cancel()
            with suppress(asyncio.CancelledError, AwayError, StorageError):
                await trying

    def _look_after_waiting(self) -> None:
        terms, now = self._terms, self._loop.time()
        if self._away_since is None or now < self._away_since + terms.patience:
            return
        for gate in self._gates.values():
            if terms.away == "refuse":
                gate.refuse(lambda stay: f"{terms.where}, which has {stay.wanted.title}, cannot be reached")
            elif terms.away == "local":
                gate.share_out(terms.share, now)

    def _note_reached(self) -> None:
        if self._away_since is not None:
            _logger.warning("%s: reached again", self._terms.where)
        self._away_since = None

    def _note_away(self, error: Exception) -> None:
        if self._away_since is None and not self._is_closing:
            self._away_since = self._loop.time()
            what = {"wait": "calls wait", "refuse": "calls are refused", "local": "a local share is used"}
            _logger.warning(
                "%s: cannot be reached (%s); %s until it is", self._terms.where, error, what[self._terms.away]
            )

    def _refuse_all(self, error: StorageError) -> None:
        for gate in list(self._gates.values()):
            gate.refuse(lambda _: StorageError(error.where, error.reason))
            if not gate.stays:
                del self._gates[gate.name]


_open: "weakref.WeakSet[Desk]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Give back what a process has that comes to its end."""
    for desk in list(_open):
        desk.close()
