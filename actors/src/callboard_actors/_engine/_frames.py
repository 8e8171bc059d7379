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


def current_versions() -> dict[str, str]:
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


def encode_frame(kind: Kind, number: int = 0, payload: bytes = b"") -> bytes:
    """Return the bytes of one frame of the worker protocol; `number` is that of a call, or of a zygote's worker."""
    return HEADER.pack(MAGIC, kind, number, len(payload)) + payload


def decode_header(header_bytes: bytes) -> Header:
    """Decode the header of a frame; raise `GarbageError` if it is invalid."""
    magic, kind_code, number, length = HEADER.unpack(header_bytes)
    kind = _KINDS.get(kind_code)
    if magic != MAGIC or kind is None:
        raise GarbageError(f"{header_bytes!r} begins no frame")
    return Header(kind, number, length)


# Bodies.


def as_json(value: Mapping[str, Any]) -> bytes:
    """Encode a mapping as JSON, for the payload of a frame."""
    return json.dumps(value).encode()


def from_json(payload: bytes | memoryview) -> dict[str, Any]:
    """Decode the JSON payload of a frame; raise `GarbageError` if the payload is no JSON object."""
    try:
        value = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise GarbageError(f"JSON that is none: {error}") from None
    if not isinstance(value, dict):
        raise GarbageError("JSON that is no object")
    return value


_CONTEXT_LENGTH: Final = struct.Struct("!I")


def encode_call(context: Mapping[str, Any], pickled_call: bytes) -> bytes:
    """Encode the payload of a CALL frame, which is JSON followed by a pickle."""
    context_json = as_json(context)
    return _CONTEXT_LENGTH.pack(len(context_json)) + context_json + pickled_call


def decode_call(payload: bytes) -> tuple[dict[str, Any], memoryview]:
    """Split the payload of a CALL frame into its decoded JSON and its pickle; raise `GarbageError` if it is invalid."""
    if len(payload) < _CONTEXT_LENGTH.size:
        raise GarbageError("a call that has no beginning")
    view = memoryview(payload)
    context_end = _CONTEXT_LENGTH.size + _CONTEXT_LENGTH.unpack_from(payload)[0]
    return from_json(view[_CONTEXT_LENGTH.size : context_end]), view[context_end:]


def encode_loss(reason: str, details: str = "") -> bytes:
    """Encode the payload of a LOST frame (the result cannot be sent): an error text, and details for a note."""
    # A zero character separates the two texts, so the reason must not contain one.
    return "\0".join((reason.replace("\0", "\\0"), details)).encode(errors="replace")


def decode_loss(payload: bytes) -> tuple[str, str]:
    """Decode the payload of a LOST frame (the result cannot be sent); return the reason, and details for a note."""
    reason, _, details = payload.decode(errors="replace").partition("\0")
    return reason, details


# Blocking receipt, in a worker process.

BEGUN_COUNTER: Final = struct.Struct("!Q")
"""Layout of the begun counter: a file in which a worker writes the number of each call before it begins it.

The file outlives the worker, so the pool can tell a call that began from one that did not. In a dedicated worker, all
calls with smaller numbers have begun, too.
"""


def receive_frame(stream: BinaryIO) -> tuple[int, bytes] | None:
    """Block until a frame has arrived; return its call number and payload, or `None` if the other end has closed."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    _, number, length = decode_header(header)
    payload = stream.read(length)
    return (number, payload) if len(payload) == length else None


# Receipt on an event loop.

_FRAMES_IN_A_ROW: Final = 32
"""Number of frames that are read in a row before other tasks may run."""


@dataclass(slots=True, eq=False)
class FrameReader:
    """Reader of frames from one socket or stream."""

    stream: InitVar[AnyByteReceiveStream]
    """Stream of bytes; its `receive` raises at the end of the data."""
    max_payload: int
    """Largest size of the payload of a frame, in bytes."""
    limit_text: str = "{} are the most"
    """Part of the error text for payloads longer than `max_payload`."""
    only_number: int | None = None
    """Number of the only call in progress, `None` if there are several. A frame of another call is rejected by its
    header, because its payload may never arrive.
    """
    kinds: frozenset[Kind] = frozenset(Kind)
    """Kinds of frames that may arrive."""
    _buffered: BufferedByteReceiveStream = field(init=False)
    _frame_count: int = field(default=0, init=False)

    def __post_init__(self, stream: AnyByteReceiveStream) -> None:
        self._buffered = BufferedByteReceiveStream(stream)

    @property
    def has_more(self) -> bool:
        """`True` if bytes were received after the frame that `read_frame` has returned last."""
        return bool(self._buffered.buffer)

    async def read_frame(self) -> tuple[Header, bytes]:
        """Wait for the next frame; return its header and payload."""
        self._frame_count += 1
        if self._frame_count % _FRAMES_IN_A_ROW == 0:
            # While frames are buffered, nothing below waits, so a flood of small frames would hold the event loop.
            await checkpoint()
        header = decode_header(await self._buffered.receive_exactly(HEADER.size))
        # Before the payload is received: it may be huge, or never arrive.
        if header.kind not in self.kinds or self.only_number not in (None, header.number):
            raise GarbageError("it is for another call")
        if header.kind is Kind.EVENT and header.length > MAX_EVENT:
            raise GarbageError(f"a word of {header.length} bytes, and {MAX_EVENT} are the most")
        if header.length > self.max_payload:
            raise GarbageError(f"it has {header.length} bytes, and {self.limit_text.format(self.max_payload)}")
        # The buffer grows with the bytes that arrive. Memory is not allocated by the length in the header, which is not
        # trusted.
        return header, await self._buffered.receive_exactly(header.length)
