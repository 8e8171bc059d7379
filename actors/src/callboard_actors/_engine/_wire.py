"""Protocol between an agent and a worker: frames with a header and a body.

Received bytes are not trusted: each frame is checked, and none may be longer than its receiver allows.
"""

import json
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from anyio import EndOfStream
from anyio.abc import ByteStream

from callboard_actors._engine._frames import HEADER, MAX_TOLD, FrameHeader, GarbageError, read_header

PROTOCOL: Final = 1
"""Version of the protocol; both sides must have the same."""
# Differs from the magic of the pool's frames, which share the header's layout but not the kinds.
MAGIC: Final = b"cR"
LONGEST_GREETING: Final = 4 * 1024
"""Bytes of a frame at most before the other side has proved that it has the secret."""
LONGEST_WELCOME: Final = 1024 * 1024
"""Bytes of the worker's terms at most; they list the names of everything it serves."""
_CHUNK: Final = 256 * 1024


class Kind(IntEnum):
    """Kind of a frame, which determines its body. Its number is that of a call, if nothing else is said."""

    GREET = 1
    """Step of the handshake, in JSON."""
    REFUSE = 2
    """Text: why the connection is refused or closed."""
    PING = 3
    """Heartbeat, in both directions; no body."""
    DRAIN = 4
    """From a worker: new calls and dedicated workers are refused from now on."""
    CALL = 5
    """Call: injected context and options in JSON, then a pickle of the function and its arguments."""
    CANCEL = 6
    """Cancel a call; its reply is the acknowledgement."""
    TOLD = 7
    """Event of a running call, in JSON."""
    VALUE = 8
    """Reply: result."""
    RAISED = 9
    """Reply: exception."""
    LOST = 10
    """Reply: why the result or exception cannot be sent."""
    ENDED = 11
    """Reply without an outcome, in JSON: unknown or unavailable, the reason, and whether it would recur."""
    SEAT = 12
    """Request for a dedicated worker process with this title. Here and in the next three, the number is its own."""
    SEATED = 13
    """The dedicated worker has started."""
    LEAVE = 14
    """The agent no longer needs the dedicated worker."""
    UNSEATED = 15
    """The dedicated worker has ended, or was refused; the reason in JSON."""


REPLIES: Final = frozenset({Kind.VALUE, Kind.RAISED, Kind.LOST, Kind.ENDED})
_KINDS: Final = {int(kind): kind for kind in Kind}


Header = FrameHeader[Kind]


def frame(kind: Kind, number: int = 0, body: bytes | bytearray = b"") -> bytes:
    """Encode a frame."""
    return HEADER.pack(MAGIC, kind, number, len(body)) + body


def as_json(said: Mapping[str, Any]) -> bytes:
    """Encode a JSON body."""
    return json.dumps(said).encode()


def from_json(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Decode a JSON body; raise `GarbageError` if it is no JSON object."""
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise GarbageError(f"JSON that is none: {error}") from None
    if not isinstance(found, dict):
        raise GarbageError("JSON that is no object")
    return found


_ALONG: Final = struct.Struct("!I")


def call_of(along: Mapping[str, Any], pickled: bytes) -> bytes:
    """Encode the body of a CALL frame: JSON part and pickle."""
    said = as_json(along)
    return _ALONG.pack(len(said)) + said + pickled


def parts_of(call: bytes | bytearray) -> tuple[dict[str, Any], bytes]:
    """Split the body of a CALL frame into JSON part and pickle; raise `GarbageError` if it is invalid."""
    if len(call) < _ALONG.size:
        raise GarbageError("a call that has no beginning")
    end = _ALONG.size + _ALONG.unpack_from(call)[0]
    return from_json(call[_ALONG.size : end]), bytes(call[end:])


def header_of(data: bytes | bytearray) -> Header:
    """Decode the header of a frame; raise `GarbageError` if it is invalid."""
    return read_header(data, MAGIC, _KINDS)


class FrameReader:
    """Reader of frames from a stream; `longest` is the maximum of bytes of a body, and may be changed."""

    def __init__(self, stream: ByteStream, longest: int) -> None:
        self.longest = longest
        self._stream = stream
        self._data = bytearray()
        self.bytes_seen = 0
        """Bytes received so far; the heartbeat watches it, so a large frame on its way counts as a sign of life."""

    async def next(self) -> tuple[Header, bytearray]:
        """Wait for the next frame; return its header and body.

        Raise `GarbageError` for bytes that are no frame of an allowed length. Raise `anyio.EndOfStream` or
        `anyio.BrokenResourceError` at the end.
        """
        await self._have(HEADER.size)
        header = header_of(self._data[: HEADER.size])
        longest = MAX_TOLD if header.kind is Kind.TOLD else self.longest
        # Refused by its header, before any of the body is received.
        if header.length > longest:
            raise GarbageError(f"a frame of {header.length} bytes, and {longest} are the most")
        end = HEADER.size + header.length
        await self._have(end)
        body = self._data[HEADER.size : end]
        del self._data[:end]
        return header, body

    async def _have(self, count: int) -> None:
        # Grows with the bytes that arrive. Memory is not allocated by the length in the header, which is not trusted.
        while len(self._data) < count:
            more = await self._stream.receive(_CHUNK)
            if not more:
                raise EndOfStream
            self.bytes_seen += len(more)
            self._data += more
