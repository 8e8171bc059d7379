"""Reader of frames from a worker's socket; the bytes are not trusted."""

import json
from typing import Any, Final

from anyio.lowlevel import checkpoint

from callboard_actors._engine._frames import HEADER, MAX_TOLD, GarbageError, Header, Kind, header_of
from callboard_actors._engine._socket_reader import Incoming

_CHUNK: Final = 64 * 1024
_FRAMES_IN_A_ROW: Final = 32
"""Frames read before other tasks get a turn, even if more have arrived."""


class FrameReader:
    """Reader of frames from one socket.

    Args:
        incoming: receiver of the socket.
        max_result: bytes of a reply at most.
        only: number of the only call in progress, `None` if there are several. A frame of another call is rejected by
            its header, because its body may never arrive.
    """

    def __init__(self, incoming: Incoming, max_result: int, only: int | None = None) -> None:
        self._only = only
        self._incoming = incoming
        self._max_result = max_result
        # Received bytes; the ones before `_at` are consumed. Not trimmed at each frame, which would copy the rest.
        self._data = b""
        self._at = 0
        self._frames = 0

    @property
    def has_more(self) -> bool:
        """`True` if bytes have arrived after the last frame."""
        return self._at < len(self._data)

    async def next(self) -> tuple[Header, bytes | bytearray]:
        """Wait for the next frame; return its header and body.

        Raise `GarbageError` for bytes that are no frame of an allowed length, and `ConnectionError` at the end.
        """
        self._frames += 1
        if self._frames % _FRAMES_IN_A_ROW == 0:
            # While frames are buffered, nothing below waits, so a flood of small frames would hold the event loop.
            await checkpoint()
        while len(self._data) - self._at < HEADER.size:
            more = await self._incoming.receive(_CHUNK)
            self._data, self._at = self._data[self._at :] + more, 0
        begin = self._at + HEADER.size
        header = self._bounded(header_of(self._data[self._at : begin]))
        end = begin + header.length
        if end <= len(self._data):
            self._at = end
            return header, self._data[begin:end]
        # Grows with the bytes that arrive. Memory is not allocated by the length in the header, which is not trusted.
        body = bytearray(self._data[begin:])
        self._data, self._at = b"", 0
        while len(body) < header.length:
            body += await self._incoming.receive(min(header.length - len(body), 16 * _CHUNK))
        return header, body

    def _bounded(self, header: Header) -> Header:
        if self._only is not None and (header.number != self._only or header.kind in (Kind.CALL, Kind.CANCEL)):
            raise GarbageError("it is for another call")
        if header.kind is Kind.TOLD and header.length > MAX_TOLD:
            raise GarbageError(f"a word of {header.length} bytes, and {MAX_TOLD} are the most")
        if header.length > self._max_result:
            raise GarbageError(f"it has {header.length} bytes, and max_result is {self._max_result}")
        return header


def told_by(body: bytes | bytearray) -> Any:
    """Decode an event of a call, which is JSON; raise `GarbageError` if it is invalid."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise GarbageError(f"a word that is no JSON: {error}") from None
