"""Connection after its handshake, on either side: a send queue, received frames, and heartbeats."""

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio
from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream

from callboard_actors._engine._frames import FrameReader, GarbageError, Header, Kind, frame

_PIECE = 256 * 1024
"""Bytes of one write at most, so that slow but steady progress of a large frame is noticed."""
_LOST = (EndOfStream, BrokenResourceError, ClosedResourceError, BusyResourceError, OSError)


class Waits(Protocol):
    """Sender's record of a queued frame."""

    is_sent: bool
    """Set immediately before the first byte is written."""
    is_withdrawn: bool
    """Set by the sender to have a queued frame skipped."""


class Connection:
    """Connection that runs until it is closed or the other side is lost.

    Args:
        stream: stream to the other side; closed at the end.
        reader: reader of the stream; it may hold bytes that arrived with the handshake.
        heartbeat: seconds between two pings.
        silence: seconds without received bytes, or without progress in writing, after which the other side is lost.
    """

    def __init__(self, stream: ByteStream, reader: FrameReader, *, heartbeat: float, silence: float) -> None:
        self._stream = stream
        self._reader = reader
        self._heartbeat = heartbeat
        self._silence = silence
        # Unbounded, because `send` never waits. Senders of events look at `backlog` first.
        self._due = deque[tuple[bytes, Waits | None]]()
        self._more = anyio.Event()
        self._written = 0
        self._scope = anyio.CancelScope()
        # True from the moment a piece leaves the queue until the queue is empty and written; see `flush`.
        self._is_writing = False
        self.reason: str | None = None
        """Why the connection has ended or is ending; `None` while it is usable."""

    @property
    def backlog(self) -> int:
        """Number of queued frames."""
        return len(self._due)

    def send(self, data: bytes, waits: Waits | None = None) -> None:
        """Queue a frame; never waits."""
        self._due.append((data, waits))
        self._more.set()

    def close(self, reason: str) -> None:
        """End the connection at once; queued frames are dropped."""
        self.reason = self.reason or reason
        self._scope.cancel()

    async def flush(self) -> None:
        """Wait until all queued frames are written, or the connection ends."""
        while (self._due or self._is_writing) and self.reason is None:
            await anyio.sleep(0.002)

    async def run(self, on_frame: Callable[[Header, bytes | bytearray], None]) -> str:
        """Read and write until the connection ends; return the reason.

        `on_frame` is called with each frame except pings. It raises `GarbageError` for a frame that is not allowed.
        """
        try:
            # Around reading, writing and the heartbeat, so that `close` ends all three at their next await.
            with self._scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._write)
                    group.start_soon(self._beat)
                    await self._read(on_frame)
        finally:
            # Forcefully, without a farewell: the other side may be lost.
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)
        return self.reason or "it was closed"

    async def _read(self, on_frame: Callable[[Header, bytes | bytearray], None]) -> None:
        try:
            while True:
                header, body = await self._reader.next()
                if header.kind is not Kind.PING:
                    on_frame(header, body)
        # One wrong frame ends the connection: the bytes after it cannot be trusted to be frames.
        except GarbageError as error:
            await self._refuse(f"the other side sent what it should not have: {error}")
        except _LOST:
            self.close("its connection was lost")

    async def _refuse(self, reason: str) -> None:
        """Send the other side the reason, if it still reads, and close."""
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
        """Take the next frames off the queue: small ones together, up to one write."""
        taken: list[bytes] = []
        size = 0
        while self._due and size < _PIECE:
            data, waits = self._due.popleft()
            if waits is not None:
                if waits.is_withdrawn:
                    continue
                # Before the write: a cancelled or failed write may have transferred any part of the frame.
                waits.is_sent = True
            taken.append(data)
            size += len(data)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    async def _write_all(self, data: bytes) -> None:
        for begin in range(0, len(data), _PIECE):
            await self._stream.send(data[begin : begin + _PIECE])
            self._written += 1

    async def _beat(self) -> None:
        """Send pings; close the connection if the other side sends nothing, or does not read what is written."""
        heard = wrote = (-1, anyio.current_time())
        expected = math.inf
        while True:
            now = anyio.current_time()
            if now - expected > self._heartbeat:  # this process was suspended or blocked: it could not receive
                heard, wrote = (heard[0], now), (wrote[0], now)
            if self._reader.bytes_seen != heard[0]:
                heard = self._reader.bytes_seen, now
            if self._written != wrote[0] or not self._is_writing:
                wrote = self._written, now
            if now - heard[1] > self._silence:
                return self.close(f"it was silent for {self._silence:g} s")
            # A peer that pings but does not read would let the queue grow without limit.
            if now - wrote[1] > self._silence:
                return self.close(f"it took nothing for {self._silence:g} s")
            if not self._due:  # any queued frame is a sign of life, too
                self.send(frame(Kind.PING))
            expected = now + self._heartbeat
            await anyio.sleep(self._heartbeat)
