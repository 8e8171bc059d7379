"""Frames out of a socket, one after the other; a worker is not believed."""

import json
from typing import Any, Final

from anyio.lowlevel import checkpoint

from callboard_actors.process._frames import HEADER, MAX_TOLD, GarbageError, Header, Kind, header_of
from callboard_actors.process._incoming import Incoming

_CHUNK: Final = 64 * 1024
_FRAMES_IN_A_ROW: Final = 32
"""After so many, others have their turn, however many more are there."""


class FrameReader:
    """Reads what the other end says.

    Args:
        incoming: out of the socket of a worker, or a seat's own.
        max_result: bytes that a reply may have.
        only: the number of the only call that there is; a frame of another one is refused by its header, because its
            body may never come. `None` if there are several.
    """

    def __init__(self, incoming: Incoming, max_result: int, only: int | None = None) -> None:
        self._only = only
        self._incoming = incoming
        self._max_result = max_result
        self._data = b""
        self._at = 0
        self._frames = 0

    @property
    def has_more(self) -> bool:
        """Whether something has come that was not asked for."""
        return self._at < len(self._data)

    async def next(self) -> tuple[Header, bytes | bytearray]:
        """Wait for the next frame of the worker: its header and its body.

        Raises:
            GarbageError: what comes is none, or too long.
            ConnectionError: nothing more will come.
        """
        self._frames += 1
        if self._frames % _FRAMES_IN_A_ROW == 0:
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
        # It grows with what is there: the worker's word is not enough to set memory aside.
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
    """Read what a body says while it runs, which is JSON.

    Raises:
        GarbageError: it is no JSON.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise GarbageError(f"a word that is no JSON: {error}") from None
