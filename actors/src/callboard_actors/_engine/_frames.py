"""Protocol of a pool with its worker processes: frames of header and payload.

Both ends encode and decode frames here. Received bytes are not trusted: each frame is checked, and none may be longer
than its receiver allows.
"""

import json
import struct
import sys
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from enum import IntEnum
from importlib.metadata import version
from typing import Any, BinaryIO, Final, NamedTuple

from anyio.abc import AnyByteReceiveStream
from anyio.lowlevel import checkpoint
from anyio.streams.buffered import BufferedByteReceiveStream

MAGIC: Final = b"cR"
HEADER: Final = struct.Struct("!2sBQQ")
"""Layout of a frame's header: magic bytes, kind, number, length of the payload."""
MAX_EVENT: Final = 64 * 1024
"""Largest size of one event, in bytes."""


def versions() -> dict[str, str]:
    """Return the versions of callboard and Python, which must be equal in this process and in a worker."""
    return {"callboard": version("callboard"), "python": "{}.{}".format(*sys.version_info)}


class Kind(IntEnum):
    """Kind of a frame, which determines the content of its payload."""

    CALL = 1
    """Call: injected context and options in JSON, then a pickle of the function and its arguments."""
    CANCEL = 2
    """Cancellation of a call; the reply to the call acknowledges it."""
    EVENT = 3
    """Event of a running call, in JSON. A call may have any number of events, but none after its reply."""
    VALUE = 4
    """Reply with the result of a call."""
    RAISED = 5
    """Reply with the exception that a call has raised."""
    LOST = 6
    """Reply with the reason why the result or exception cannot be sent, and details, as text; see `encode_loss`."""
    DEDICATE = 7
    """First frame for a worker process that is dedicated to one owner, such as an actor; no payload."""
    REFUSE = 8
    """Reply of a Ray actor that the function or its arguments cannot be loaded there, as text."""


OUTCOMES: Final = frozenset({Kind.VALUE, Kind.RAISED, Kind.LOST})
"""Kinds of the replies of a worker process. Besides replies, the process may send only events."""
_KINDS: Final = {int(kind): kind for kind in Kind}


class Header(NamedTuple):
    """Decoded header of a frame."""

    kind: Kind
    number: int
    length: int


class GarbageError(Exception):
    """Raised for bytes that are no valid frame."""


def frame(kind: Kind, number: int = 0, body: bytes = b"") -> bytes:
    """Return the bytes of one frame of the worker protocol: a header, and `body` as the payload."""
    return HEADER.pack(MAGIC, kind, number, len(body)) + body


def header_of(data: bytes) -> Header:
    """Decode the header of a frame; raise `GarbageError` if it is invalid."""
    begin, code, number, length = HEADER.unpack(data)
    kind = _KINDS.get(code)
    if begin != MAGIC or kind is None:
        raise GarbageError(f"{data!r} begins no frame")
    return Header(kind, number, length)


# Bodies.


def as_json(value: Mapping[str, Any]) -> bytes:
    """Encode a mapping as JSON, for the payload of a frame."""
    return json.dumps(value).encode()


def from_json(body: bytes | memoryview) -> dict[str, Any]:
    """Decode the JSON payload of a frame; raise `GarbageError` if the payload is no JSON object."""
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise GarbageError(f"JSON that is none: {error}") from None
    if not isinstance(value, dict):
        raise GarbageError("JSON that is no object")
    return value


_LENGTH: Final = struct.Struct("!I")


def call_of(context: Mapping[str, Any], pickled: bytes) -> bytes:
    """Encode the payload of a CALL frame, which is JSON followed by a pickle."""
    context_json = as_json(context)
    return _LENGTH.pack(len(context_json)) + context_json + pickled


def parts_of(call: bytes) -> tuple[dict[str, Any], memoryview]:
    """Split the payload of a CALL frame into its decoded JSON and its pickle; raise `GarbageError` if it is invalid."""
    if len(call) < _LENGTH.size:
        raise GarbageError("a call that has no beginning")
    view, end = memoryview(call), _LENGTH.size + _LENGTH.unpack_from(call)[0]
    return from_json(view[_LENGTH.size : end]), view[end:]


def encode_loss(reason: str, details: str = "") -> bytes:
    """Encode the payload of a LOST frame (the result cannot be sent): an error text, and details for a note."""
    return "\0".join((reason.replace("\0", "\\0"), details)).encode(errors="replace")


def reason_and_details(reply: bytes) -> tuple[str, str]:
    """Decode the payload of a LOST frame (the result cannot be sent); return the reason, and details for a note."""
    reason, _, details = reply.decode(errors="replace").partition("\0")
    return reason, details


# Blocking receipt, in a worker process.

BEGUN_COUNTER: Final = struct.Struct("!Q")
"""Layout of the begun counter: a file in which a worker writes the number of each call before it begins it.

The file outlives the worker, so the pool can tell a call that began from one that did not. In a dedicated worker, all
calls with smaller numbers have begun, too.
"""


def receive_frame(stream: BinaryIO) -> tuple[int, bytes] | None:
    """Block until a frame has arrived; return its call number and payload, or `None` if the other end has closed."""
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    _, number, length = header_of(head)
    body = stream.read(length)
    return (number, body) if len(body) == length else None


# Receipt on an event loop.

_FRAMES_IN_A_ROW: Final = 32
"""Number of frames that are read in a row before other tasks may run."""


@dataclass(slots=True, eq=False)
class FrameReader:
    """Reader of frames from one socket or stream."""

    stream: InitVar[AnyByteReceiveStream]
    """Stream of bytes; its `receive` raises at the end of the data."""
    longest: int
    """Largest size of the payload of a frame, in bytes."""
    bound: str = "{} are the most"
    """Part of the error text for payloads longer than `longest`."""
    only: int | None = None
    """Number of the only call in progress, `None` if there are several. A frame of another call is rejected by its
    header, because its payload may never arrive.
    """
    kinds: frozenset[Kind] = frozenset(Kind)
    """Kinds of frames that may arrive."""
    _buffered: BufferedByteReceiveStream = field(init=False)
    _frames: int = field(default=0, init=False)

    def __post_init__(self, stream: AnyByteReceiveStream) -> None:
        self._buffered = BufferedByteReceiveStream(stream)

    @property
    def has_more(self) -> bool:
        """`True` if bytes were received after the frame that `next` has returned last."""
        return bool(self._buffered.buffer)

    async def next(self) -> tuple[Header, bytes]:
        """Wait for the next frame; return its header and payload."""
        self._frames += 1
        if self._frames % _FRAMES_IN_A_ROW == 0:
            # While frames are buffered, nothing below waits, so a flood of small frames would hold the event loop.
            await checkpoint()
        header = header_of(await self._buffered.receive_exactly(HEADER.size))
        # Before the payload is received.
        if header.kind not in self.kinds or self.only not in (None, header.number):
            raise GarbageError("it is for another call")
        if header.kind is Kind.EVENT and header.length > MAX_EVENT:
            raise GarbageError(f"a word of {header.length} bytes, and {MAX_EVENT} are the most")
        if header.length > self.longest:
            raise GarbageError(f"it has {header.length} bytes, and {self.bound.format(self.longest)}")
        # Grows with the bytes that arrive. Memory is not allocated by the length in the header, which is not trusted.
        return header, await self._buffered.receive_exactly(header.length)
