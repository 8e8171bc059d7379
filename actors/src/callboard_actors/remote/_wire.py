"""What goes over a connection between an agent's machine and a worker: frames, each a header and a body.

Nothing that comes is believed to be a frame, and none is longer than its receiver has said.
"""

import json
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from anyio import EndOfStream
from anyio.abc import ByteStream

from callboard_actors.process._frames import HEADER, MAX_TOLD, FrameHeader, GarbageError, read_header

PROTOCOL: Final = 1
"""Both sides have to speak the same one."""
MAGIC: Final = b"cR"
LONGEST_GREETING: Final = 4 * 1024
"""Bytes of a frame before both sides have proved who they are."""
LONGEST_WELCOME: Final = 1024 * 1024
"""Bytes of a frame from a worker that has: it has the names of what is served."""
_CHUNK: Final = 256 * 1024


class Kind(IntEnum):
    """What the body of a frame is. The numbers are those of calls, unless it says something else."""

    GREET = 1
    """A step of the handshake, in JSON."""
    REFUSE = 2
    """Text: why there will be no connection, or no longer."""
    PING = 3
    """Nothing, in either direction: a sign of life."""
    DRAIN = 4
    """From a worker: nothing new begins here."""
    CALL = 5
    """A call: what is carried with it, in JSON, and a pickle of a function and its arguments."""
    CANCEL = 6
    """A call is to end; its end is its acknowledgement."""
    TOLD = 7
    """What a call says while it runs, in JSON."""
    VALUE = 8
    """What a call returned."""
    RAISED = 9
    """The exception that it raised."""
    LOST = 10
    """Why what it returned or raised cannot be sent."""
    ENDED = 11
    """A call ended without any of these, in JSON: what is known of it, why, and whether it would happen again."""
    SEAT = 12
    """The number is that of a seat from here on: somebody wants one, by that title."""
    SEATED = 13
    """There it is."""
    LEAVE = 14
    """It is not needed any more."""
    UNSEATED = 15
    """It has ended, or there is none: in JSON."""


REPLIES: Final = frozenset({Kind.VALUE, Kind.RAISED, Kind.LOST, Kind.ENDED})
_KINDS: Final = {int(kind): kind for kind in Kind}


Header = FrameHeader[Kind]


def frame(kind: Kind, number: int = 0, body: bytes | bytearray = b"") -> bytes:
    """A frame as it is sent."""
    return HEADER.pack(MAGIC, kind, number, len(body)) + body


def as_json(said: Mapping[str, Any]) -> bytes:
    """The body of a frame that is JSON."""
    return json.dumps(said).encode()


def from_json(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Understand the body of a frame that is JSON.

    Raises:
        GarbageError: it is no JSON, or no object.
    """
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise GarbageError(f"JSON that is none: {error}") from None
    if not isinstance(found, dict):
        raise GarbageError("JSON that is no object")
    return found


_ALONG: Final = struct.Struct("!I")


def call_of(along: Mapping[str, Any], pickled: bytes) -> bytes:
    """The body of a call: what goes along with it, in JSON, and a pickle."""
    said = as_json(along)
    return _ALONG.pack(len(said)) + said + pickled


def parts_of(call: bytes | bytearray) -> tuple[dict[str, Any], bytes]:
    """What goes along with a call, and its pickle.

    Raises:
        GarbageError: it is no call.
    """
    if len(call) < _ALONG.size:
        raise GarbageError("a call that has no beginning")
    end = _ALONG.size + _ALONG.unpack_from(call)[0]
    return from_json(call[_ALONG.size : end]), bytes(call[end:])


def header_of(data: bytes | bytearray) -> Header:
    """Read the header of a frame, whoever has written it.

    Raises:
        GarbageError: it is none.
    """
    return read_header(data, MAGIC, _KINDS)


class FrameReader:
    """Reads what the other end of a connection says.

    `longest` is how many bytes the body of a frame may have.
    """

    def __init__(self, stream: ByteStream, longest: int) -> None:
        self.longest = longest
        self._stream = stream
        self._data = bytearray()
        self.bytes_seen = 0
        """How much has come; it grows with every sign of life."""

    async def next(self) -> tuple[Header, bytearray]:
        """Wait for the next frame: its header and its body.

        Raises:
            GarbageError: what comes is none, or too long.
            anyio.EndOfStream: nothing more will come.
            anyio.BrokenResourceError: the connection is lost.
        """
        await self._have(HEADER.size)
        header = header_of(self._data[: HEADER.size])
        longest = MAX_TOLD if header.kind is Kind.TOLD else self.longest
        if header.length > longest:
            raise GarbageError(f"a frame of {header.length} bytes, and {longest} are the most")
        end = HEADER.size + header.length
        await self._have(end)
        body = self._data[HEADER.size : end]
        del self._data[:end]
        return header, body

    async def _have(self, count: int) -> None:
        # It grows with what is there: a length that somebody gives is not enough to set memory aside.
        while len(self._data) < count:
            more = await self._stream.receive(_CHUNK)
            if not more:
                raise EndOfStream
            self.bytes_seen += len(more)
            self._data += more
