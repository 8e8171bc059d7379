"""A connection after its handshake, on either side: frames out of a queue, frames in, signs of life."""

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio
from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream

from callboard_actors.process._frames import GarbageError
from callboard_actors.remote._wire import FrameReader, Header, Kind, frame

_PIECE = 256 * 1024
"""Bytes that are written at once; so that progress is seen."""
_LOST = (EndOfStream, BrokenResourceError, ClosedResourceError, BusyResourceError, OSError)


class Waits(Protocol):
    """What waits in the queue, with its frame."""

    is_sent: bool
    """Set when its first byte is written."""
    is_withdrawn: bool
    """Whether it is not to be sent any more."""


class Connection:
    """Runs until one side is away, or it is closed.

    Args:
        stream: to the other side; it is closed at the end.
        reader: of it; it may have read more than the handshake.
        heartbeat: seconds between two signs of life.
        silence: seconds without one after which the other side is away.
    """

    def __init__(self, stream: ByteStream, reader: FrameReader, *, heartbeat: float, silence: float) -> None:
        self._stream = stream
        self._reader = reader
        self._heartbeat = heartbeat
        self._silence = silence
        self._due = deque[tuple[bytes, Waits | None]]()
        self._more = anyio.Event()
        self._written = 0
        self._scope = anyio.CancelScope()
        self._is_writing = False
        self.reason: str | None = None
        """Why it has ended, in words, as soon as it has or is about to."""

    @property
    def backlog(self) -> int:
        """Frames that wait to be sent."""
        return len(self._due)

    def send(self, data: bytes, waits: Waits | None = None) -> None:
        """Have a frame sent, behind those that wait."""
        self._due.append((data, waits))
        self._more.set()

    def close(self, reason: str) -> None:
        """End it; what waits is not sent any more."""
        self.reason = self.reason or reason
        self._scope.cancel()

    async def flush(self) -> None:
        """Wait until all that waits has been sent."""
        while (self._due or self._is_writing) and self.reason is None:
            await anyio.sleep(0.002)

    async def run(self, on_frame: Callable[[Header, bytearray], None]) -> str:
        """Read and write until it ends; returns why.

        `on_frame` is told of each frame, and raises GarbageError for what should not have come.
        """
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._write)
                    group.start_soon(self._beat)
                    await self._read(on_frame)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)
        return self.reason or "it was closed"

    async def _read(self, on_frame: Callable[[Header, bytearray], None]) -> None:
        try:
            while True:
                header, body = await self._reader.next()
                if header.kind is not Kind.PING:
                    on_frame(header, body)
        except GarbageError as error:
            await self._refuse(f"the other side sent what it should not have: {error}")
        except _LOST:
            self.close("its connection was lost")

    async def _refuse(self, reason: str) -> None:
        """Tell the other side, if it listens, why this is the end."""
        self.send(frame(Kind.REFUSE, 0, reason.encode()[:1000]))
        with anyio.move_on_after(0.5):
            await self.flush()
        self.close(reason)

    async def _write(self) -> None:
        try:
            while True:
                while self._due:
                    self._is_writing = True
                    await self._write_all(self._portion())
                self._is_writing = False
                self._more = anyio.Event()
                await self._more.wait()
        except _LOST:
            self.close("its connection was lost")

    def _portion(self) -> bytes:
        """The frames that come next, many small ones at once."""
        taken: list[bytes] = []
        size = 0
        while self._due and size < _PIECE:
            data, waits = self._due.popleft()
            if waits is not None:
                if waits.is_withdrawn:
                    continue
                waits.is_sent = True
            taken.append(data)
            size += len(data)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    async def _write_all(self, data: bytes) -> None:
        for begin in range(0, len(data), _PIECE):
            await self._stream.send(data[begin : begin + _PIECE])
            self._written += 1

    async def _beat(self) -> None:
        """Give signs of life, and see that the other side does; it has also to take what is written."""
        heard = wrote = (-1, anyio.current_time())
        expected = math.inf
        while True:
            now = anyio.current_time()
            if now - expected > self._heartbeat:  # this side has slept, and has not listened meanwhile
                heard, wrote = (heard[0], now), (wrote[0], now)
            if self._reader.bytes_seen != heard[0]:
                heard = self._reader.bytes_seen, now
            if self._written != wrote[0] or not self._is_writing:
                wrote = self._written, now
            if now - heard[1] > self._silence:
                return self.close(f"it was silent for {self._silence:g} s")
            if now - wrote[1] > self._silence:
                return self.close(f"it took nothing for {self._silence:g} s")
            if not self._due:
                self.send(frame(Kind.PING))
            expected = now + self._heartbeat
            await anyio.sleep(self._heartbeat)
