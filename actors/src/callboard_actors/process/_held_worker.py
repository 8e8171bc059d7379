"""A worker, as the pool holds it: its number, our ends of its sockets, and how it ended."""

import itertools
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import anyio

from callboard.engines import NonsenseError
from callboard_actors.process._frames import (
    NOTEBOOK,
    GarbageError,
    Kind,
    frame,
)
from callboard_actors.process._incoming import incoming
from callboard_actors.process._kernel import resident, shared_number
from callboard_actors.process._reader import FrameReader, told_by
from callboard_actors.process._settings import Terms

_CHUNK = 64 * 1024


class BrokenError(Exception):
    """A worker cannot go on with its call; says why, where its end does not."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(reason)


class HeldWorker:
    """One worker process, as the pool holds it: its sockets, its calls, its end.

    It is the pool's until it has ended and nobody reads from it any more; then its sockets are closed.

    Args:
        max_output: bytes of its output that are kept, the last.
        is_trusted: whether its own note of the call that it has begun is believed. Code in a confined worker can
            change that note; so a call counts there as begun from its first byte that was sent.
    """

    _numbers = itertools.count(1)

    def __init__(self, max_output: int, *, is_trusted: bool = True) -> None:
        self._is_trusted = is_trusted
        self.number = next(self._numbers)
        self.pid: int | None = None
        """Its process id, as soon as it has been forked."""
        self.exitcode: int | None = None
        self.unforked: int | None = None
        """Why it never was a process, by the number of the error."""
        self.asked_to_end = False
        self.calls = 0
        self.settled = anyio.Event()
        """It has been forked, or never will be."""
        self.ended = anyio.Event()
        self._in_use = False
        self._closing = False
        self._is_closed = False
        self._begun = 0
        self._last_sent = 0
        self._kept = _Tail(max_output)
        with ExitStack() as opened:  # all of it, or nothing
            self._sock, self._theirs = socket.socketpair()
            opened.callback(self._theirs.close)
            opened.callback(self._sock.close)
            self._sock.setblocking(False)
            self._incoming = incoming(self._sock)
            self._output, self._their_output = os.pipe()
            opened.callback(os.close, self._output)
            opened.callback(os.close, self._their_output)
            os.set_blocking(self._output, False)
            self._speech, self._printing = _watch(self._sock), _watch(self._output)
            # A file and no message, because it can be read when nobody is left to send.
            self._notebook = shared_number(NOTEBOOK.size)
            opened.callback(os.close, self._notebook)
            opened.pop_all()

    def fds(self) -> list[int]:
        """The file descriptors that the worker is given when it is forked."""
        return [self._theirs.fileno(), self._their_output, self._notebook]

    def begin(self, pid: int | None) -> None:
        """Be told that the process is there, and has what it needs."""
        self.pid = pid
        self._hand_over()
        self.settled.set()

    def _hand_over(self) -> None:
        """Close the worker's ends; not before it has them: macOS loses files that are on their way and open nowhere."""
        if self._theirs.fileno() >= 0:
            self._theirs.close()
            os.close(self._their_output)

    def end(self, exitcode: int | None) -> None:
        """Be told that the process is gone."""
        self.exitcode = exitcode
        self._hand_over()
        self.ended.set()
        self.settled.set()
        # Whoever reads would wait for ever if a child of the worker, which is a copy of it, held the other end.
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    @property
    def is_alive(self) -> bool:
        """It has been forked, has not ended, and nobody has asked it to."""
        return self.pid is not None and not self.ended.is_set() and not self.asked_to_end

    def is_silent(self) -> bool:
        """Whether it says nothing, as one without a call should; it does say something when its socket is closed."""
        return not self._speech.poll(0)

    def is_worn(self, terms: Terms) -> bool:
        """Whether it has to be replaced after its call."""
        if terms.serves_once or (terms.max_calls is not None and self.calls >= terms.max_calls):
            return True
        return terms.max_resident is not None and self.pid is not None and resident(self.pid) > terms.max_resident

    def has_begun(self, number: int) -> bool:
        """Return whether this call was begun, or may have been; also of a worker that has ended."""
        return self.last_begun() == number

    def last_begun(self) -> int:
        """Return the number of the call that was begun last, or may have been; 0 if there was none."""
        if not self._is_trusted:
            return self._last_sent
        if not self._is_closed:
            data = os.pread(self._notebook, NOTEBOOK.size, 0)
            self._begun = int(NOTEBOOK.unpack(data)[0]) if len(data) == NOTEBOOK.size else 0
        return self._begun

    async def exchange(
        self, number: int, body: bytes, max_result: int, deliver: Callable[[Any], None], file: int | None = None
    ) -> tuple[Kind, bytes | bytearray]:
        """Send a call, perhaps with an open file, and wait for its reply; meanwhile, deliver what it tells.

        Raises:
            BrokenError: there is none, or something else.
        """
        self._take_output()
        self._kept.clear()
        self.calls += 1
        reader = self.reader(max_result, number)
        try:
            await self.send(frame(Kind.CALL, number, body), number, file)
            while True:
                header, said = await reader.next()
                if header.kind is not Kind.TOLD:
                    break
                hand_on(said, deliver)
            if reader.has_more:
                raise GarbageError("something follows it")
        except ConnectionError:
            raise BrokenError from None
        except GarbageError as error:
            raise BrokenError(f"its worker process sent what is no reply: {error}") from None
        return header.kind, said

    def reader(self, max_result: int, only: int | None = None) -> FrameReader:
        """What reads what it says, perhaps of one call only."""
        return FrameReader(self._incoming, max_result, only)

    async def send(self, data: bytes, number: int, file: int | None = None) -> None:
        """Send all of a frame of this call, and an open file with its first bytes; one sender at a time."""
        view = memoryview(data)
        while view:
            try:
                if file is None:
                    view = view[self._sock.send(view) :]
                else:
                    view, file = view[socket.send_fds(self._sock, [view], [file]) :], None
                self._last_sent = max(self._last_sent, number)
            except BlockingIOError:
                await anyio.wait_writable(self._sock)

    async def collect_output(self) -> None:
        """Take what it writes to stdout and stderr, so that it never waits for a reader."""
        while not self._is_closed:
            await anyio.wait_readable(self._output)
            if not self._take_output(reads=1):
                return

    def _take_output(self, *, reads: int = 16) -> bool:
        """Take what is there now, but not for ever from one who writes for ever; false if there will be no more."""
        if self._is_closed:
            return False
        for _ in range(reads):
            if not self._printing.poll(0):
                return True
            data = os.read(self._output, _CHUNK)
            if not data:
                return False
            self._kept.add(data)
        return True

    def output(self) -> str:
        """The end of what it has written since its call began."""
        self._take_output()
        return self._kept.text()

    def use(self) -> None:
        """Begin with a call: nothing is closed meanwhile."""
        self._in_use = True

    def release(self) -> None:
        """Note that a call is done with it, and close our ends if that was waited for."""
        self._in_use = False
        if self._closing:
            self._close()

    def close(self) -> None:
        """Close our ends, as soon as nobody uses them."""
        self._closing = True
        if not self._in_use:
            self._close()

    def abandon(self) -> None:
        """Close our ends, whoever uses them, because nobody can."""
        self._hand_over()
        self._close()

    def _close(self) -> None:
        if self._is_closed:
            return
        # Kept for who asks later: by then the numbers of these files may be those of somebody else's.
        self._take_output()
        self.last_begun()
        self._is_closed = True
        self._incoming.close()
        self._sock.close()
        os.close(self._output)
        os.close(self._notebook)


def _watch(file: socket.socket | int) -> select.poll:
    """Returns what tells whether there is something to read, or never will be, without an error for nothing."""
    watch = select.poll()
    watch.register(file, select.POLLIN)
    return watch


def hand_on(said: bytes | bytearray, deliver: Callable[[Any], None]) -> None:
    """Deliver here what a body has said in its worker.

    Raises:
        GarbageError: it says nothing.
    """
    told = told_by(said)
    try:
        deliver(told)
    except NonsenseError as error:  # and no other ValueError, which may be of who observes it
        raise GarbageError(str(error)) from error


class _Tail:
    """The last so many bytes, or a little more."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        while self._size - len(self._pieces[0]) >= self._most:
            self._size -= len(self._pieces.popleft())

    def clear(self) -> None:
        self._pieces.clear()
        self._size = 0

    def text(self) -> str:
        data = b"".join(self._pieces)
        return data[len(data) - min(len(data), self._most) :].decode(errors="replace")
