"""A thread with one event loop, which asks a server on behalf of all others of its process.

So asyncio, trio and threads alike can ask without waiting, and no event loop has a connection to lose.
"""

import asyncio
import atexit
import logging
import math
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

from callboard import StorageError

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two attempts to reach a server."""
_LOOK = 0.05
"""Seconds between two looks at those who wait, while the server is away."""
_TO_LEAVE = 1.0
"""Seconds that the end of a process waits for the server to hear the last of it."""


class AwayError(Exception):
    """A server cannot be reached, for now."""


class Connection(Protocol):
    """A connection to a server, of one process."""

    async def open(self, client: str) -> None:
        """Connect, and have the server tell this client what others do.

        Raises:
            AwayError: if the server cannot be reached.
            StorageError: if it can, and will not do.
        """
        ...

    async def close(self) -> None:
        """Give the connection up, in whatever state it is; raises nothing."""
        ...


L = TypeVar("L", bound=Connection)


class Clerk(ABC, Generic[L]):
    """Serves until it is dismissed; what it serves is for its subclasses to say.

    Args:
        line: makes a connection that is not open yet.
        where: the server, for errors and logs: without a password.
        patience: seconds for which it may be away before those who wait are looked after.
        logger: is told when the server is away.
    """

    going_on: str
    """What is done while the server is away, for the log."""

    def __init__(self, line: Callable[[], L], where: str, patience: float, logger: logging.Logger) -> None:
        self.pid = os.getpid()
        self.where = where
        self.client = uuid4().hex[:16]
        self._line = line
        self._patience = patience
        self._logger = logger
        self._lock = threading.Lock()
        self._posted: deque[Callable[[], None]] = deque()
        self._is_called = self._has_ended = False
        self.is_closing = False
        self._ends_at = math.inf
        self._away_since: float | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name=logger.name.replace("_actors.", "-"), daemon=True)
        self._thread.start()
        self._ready.wait()
        _open.add(self)

    def dismiss(self) -> None:
        """Have it tell the server what that has to hear, and end; waits for nothing."""
        if self.pid == os.getpid() and self._thread.is_alive():
            self.post(self._note_closing)

    def close(self) -> None:
        """Have it end, and wait for that, if not for ever; from any thread but its own."""
        self.dismiss()
        if self.pid == os.getpid():
            self._thread.join(_TO_LEAVE)

    def _note_closing(self) -> None:
        self.is_closing = True
        self._ends_at = self.loop.time() + _TO_LEAVE

    @property
    def _is_over(self) -> bool:
        """Whether it has been dismissed, and has nothing to say, or nobody to say it to."""
        return self.is_closing and (not self.has_last_words() or self.loop.time() >= self._ends_at)

    def post(self, what: Callable[[], None]) -> bool:
        """Have something done; `False` if nobody is there any more to do it."""
        with self._lock:
            if self._has_ended:
                return False
            self._posted.append(what)
            is_called, self._is_called = self._is_called, True
            try:
                if not is_called:
                    self.loop.call_soon_threadsafe(self._attend)
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
        self.called.set()

    def closed(self) -> StorageError:
        """What those are told who ask too late."""
        return StorageError(self.where, "is asked no more: the store was closed while calls waited.")

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.called = asyncio.Event()
        self._ready.set()
        pause = _FIRST_PAUSE
        while not self._is_over:
            if not self.has_work():
                await self.until(math.inf)
                continue
            line = self._line()
            try:
                await self._hold_out(line.open(self.client))
                self._note_reached()
                pause = _FIRST_PAUSE
                await self._talk(line)
            except AwayError as error:
                self._note_away(error)
            except StorageError as error:
                self.refuse_all(error)
            except Exception as error:  # a bug of ours or of a client must not leave anybody waiting
                self._logger.exception("%s: the connection broke", self.where)
                self._note_away(error)
            finally:
                await line.close()
                self.forget_line()
            if not self._is_over:
                with suppress(AwayError):
                    await self._hold_out(asyncio.sleep(pause))
                pause = min(2 * pause, _LONGEST_PAUSE)
        self._attend(is_last=True)
        self.refuse_all(self.closed())

    async def _talk(self, line: L) -> None:
        """Say what there is to be said, and listen, until the line breaks."""
        listening = asyncio.ensure_future(self.listen(line))
        listening.add_done_callback(lambda _: self.called.set())
        try:
            while not listening.done():
                due = await self.say_what_is_due(line)
                if self.is_closing and due > self.loop.time() and not self._posted:
                    return  # what an answer led to has been said, too
                await self.until(due)
            listening.result()
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError, AwayError, StorageError):
                await listening

    async def until(self, when: float) -> None:
        """Wait until then, or until somebody calls."""
        if when > self.loop.time():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if math.isinf(when) else when):
                    await self.called.wait()
        self.called.clear()

    async def _hold_out(self, what: Coroutine[Any, Any, None]) -> None:
        """Look after those who wait while something is tried."""
        trying = asyncio.ensure_future(what)
        try:
            while not trying.done():
                if self.is_away_for_long:
                    self.look_after_waiting()
                await asyncio.wait([trying], timeout=_LOOK)
                if self._is_over:
                    raise AwayError("nobody asks any more")
            trying.result()
        finally:
            trying.cancel()
            with suppress(asyncio.CancelledError, AwayError, StorageError):
                await trying

    @property
    def is_away_for_long(self) -> bool:
        """Whether the server is away for longer than anybody is to wait for it."""
        return self._away_since is not None and self.loop.time() >= self._away_since + self._patience

    def _note_reached(self) -> None:
        if self._away_since is not None:
            self._logger.warning("%s: reached again", self.where)
        self._away_since = None

    def _note_away(self, error: Exception) -> None:
        if self._away_since is None and not self.is_closing:
            self._away_since = self.loop.time()
            self._logger.warning("%s: cannot be reached (%s); %s until it is", self.where, error, self.going_on)

    # What subclasses say. All of it happens in the thread of the clerk.

    @abstractmethod
    def has_work(self) -> bool:
        """Whether a connection is needed."""

    @abstractmethod
    def has_last_words(self) -> bool:
        """Whether there is something that the server has to hear, though it has not been reached yet."""

    @abstractmethod
    async def say_what_is_due(self, line: L) -> float:
        """Say it; returns when there is more, by the clock of the loop."""

    @abstractmethod
    async def listen(self, line: L) -> None:
        """Hear what the server says by itself, until the line breaks.

        Raises:
            AwayError: then.
        """

    @abstractmethod
    def look_after_waiting(self) -> None:
        """See to those who wait, while the server is away for longer than they are to wait."""

    @abstractmethod
    def refuse_all(self, error: StorageError) -> None:
        """Tell everybody that there is no use in waiting."""

    @abstractmethod
    def forget_line(self) -> None:
        """Know that what was said last may not have been heard."""


_open: "weakref.WeakSet[Clerk[Any]]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Say the last word of a process that comes to its end."""
    for clerk in list(_open):
        clerk.close()
