"""Protocol of a pool with its worker processes: frames of header and payload.

Both ends encode and decode frames here. Received bytes are not trusted: each frame is checked, and none may be longer
than its receiver allows.
"""

import json
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from importlib.metadata import version
from socket import socket
from typing import Any, Final, NamedTuple

from anyio.lowlevel import checkpoint

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


def frame(kind: Kind, number: int = 0, body: bytes | bytearray = b"") -> bytes:
    """Return the bytes of one frame of the worker protocol: a header, and `body` as the payload."""
    return HEADER.pack(MAGIC, kind, number, len(body)) + body


def header_of(data: bytes | bytearray | memoryview) -> Header:
    """Decode the header of a frame; raise `GarbageError` if it is invalid."""
    begin, code, number, length = HEADER.unpack(data)
    kind = _KINDS.get(code)
    if begin != MAGIC or kind is None:
        raise GarbageError(f"{bytes(data)!r} begins no frame")
    return Header(kind, number, length)


# Bodies.


def as_json(value: Mapping[str, Any]) -> bytes:
    """Encode a mapping as JSON, for the payload of a frame."""
    return json.dumps(value).encode()


def from_json(body: bytes | bytearray | memoryview) -> dict[str, Any]:
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


def parts_of(call: bytes | bytearray) -> tuple[dict[str, Any], memoryview]:
    """Split the payload of a CALL frame into its decoded JSON and its pickle; raise `GarbageError` if it is invalid."""
    if len(call) < _LENGTH.size:
        raise GarbageError("a call that has no beginning")
    view, end = memoryview(call), _LENGTH.size + _LENGTH.unpack_from(call)[0]
    return from_json(view[_LENGTH.size : end]), view[end:]


def encode_loss(reason: str, details: str = "") -> bytes:
    """Encode the payload of a LOST frame (the result cannot be sent): an error text, and details for a note."""
    return "\0".join((reason.replace("\0", "\\0"), details)).encode(errors="replace")


def reason_and_details(reply: bytes | bytearray) -> tuple[str, str]:
    """Decode the payload of a LOST frame (the result cannot be sent); return the reason, and details for a note."""
    reason, _, details = reply.decode(errors="replace").partition("\0")
    return reason, details


# Blocking receipt, in a worker process.

BEGUN_COUNTER: Final = struct.Struct("!Q")
"""Layout of the begun counter: a file in which a worker writes the number of each call before it begins it.

The file outlives the worker, so the pool can tell a call that began from one that did not. In a dedicated worker, all
calls with smaller numbers have begun, too.
"""


def receive_frame(sock: socket) -> tuple[int, bytes | bytearray] | None:
    """Block until a frame has arrived; return its call number and payload, or `None` if the other end has closed."""
    # The peer must not send another frame before this one is answered: surplus bytes would be lost.
    data = sock.recv(64 * 1024)
    # Usually one `recv` gets the whole frame; the lines below complete a partial header or body.
    if data and len(data) < HEADER.size:
        data += receive_exactly(sock, HEADER.size - len(data)) or b""
    if len(data) < HEADER.size:
        return None
    _, number, length = header_of(data[: HEADER.size])
    body = data[HEADER.size :]
    if len(body) == length:
        return number, body
    remainder = receive_exactly(sock, length - len(body))
    return None if remainder is None else (number, body + remainder)


def receive_exactly(sock: socket, length: int) -> bytearray | None:
    """Block until `length` bytes have arrived, and return them; return `None` if the other end closes earlier."""
    data = bytearray(length)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return data


# Receipt on an event loop.

_CHUNK: Final = 64 * 1024
_FRAMES_IN_A_ROW: Final = 32
"""Number of frames that are read in a row before other tasks may run."""


@dataclass(slots=True, eq=False)
class FrameReader:
    """Reader of frames from one socket or stream."""

    receive: Callable[[int], Awaitable[bytes]]
    """Function that waits for data and returns at most the given number of bytes; raises at the end of the data."""
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
    # Received bytes; the ones before `_position` are consumed. Not trimmed at each frame, which would copy the rest.
    _data: bytes = b""
    _position: int = 0
    _frames: int = 0

    @property
    def has_more(self) -> bool:
        """`True` if bytes were received after the frame that `next` has returned last."""
        return self._position < len(self._data)

    async def next(self) -> tuple[Header, bytes | bytearray]:
        """Wait for the next frame; return its header and payload."""
        self._frames += 1
        if self._frames % _FRAMES_IN_A_ROW == 0:
            # While frames are buffered, nothing below waits, so a flood of small frames would hold the event loop.
            await checkpoint()
        while len(self._data) - self._position < HEADER.size:
            chunk = await self.receive(_CHUNK)
            self._data, self._position = self._data[self._position :] + chunk, 0
        begin = self._position + HEADER.size
        header = header_of(self._data[self._position : begin])
        # Before the payload is received.
        if header.kind not in self.kinds or self.only not in (None, header.number):
            raise GarbageError("it is for another call")
        if header.kind is Kind.EVENT and header.length > MAX_EVENT:
            raise GarbageError(f"a word of {header.length} bytes, and {MAX_EVENT} are the most")
        if header.length > self.longest:
            raise GarbageError(f"it has {header.length} bytes, and {self.bound.format(self.longest)}")
        end = begin + header.length
        if end <= len(self._data):
            self._position = end
            return header, self._data[begin:end]
        # Grows with the bytes that arrive. Memory is not allocated by the length in the header, which is not trusted.
        body = bytearray(self._data[begin:])
        self._data, self._position = b"", 0
        while len(body) < header.length:
            body += await self.receive(min(header.length - len(body), 16 * _CHUNK))
        return header, body
