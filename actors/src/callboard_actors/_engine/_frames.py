"""Protocol between pool and worker: frames with a header and a body, for calls, replies and events.

Both ends encode and decode frames here. `FrameReader` receives them from a worker, whose bytes are not trusted.
"""

import json
import marshal
import struct
from collections.abc import Mapping
from enum import IntEnum
from socket import socket
from typing import Any, Final, Generic, NamedTuple, TypeVar

from anyio.lowlevel import checkpoint

from callboard_actors._engine._socket_reader import Incoming

MAGIC: Final = b"cb"
HEADER: Final = struct.Struct("!2sBQQ")
"""Magic bytes, kind, call number, length of the body."""


class Kind(IntEnum):
    """Kind of a frame, which determines its body."""

    CALL = 1
    """Call: injected context as data, then a pickle of the function and its arguments."""
    VALUE = 2
    """Reply: pickled result."""
    RAISED = 3
    """Reply: pickled exception."""
    LOST = 4
    """Reply: text with the reason why the result or exception cannot be sent, and details; see `lost`."""
    TOLD = 5
    """Event of a running call, in JSON. Any number of them, but none after the reply."""
    CANCEL = 6
    """Request to a dedicated worker to cancel a call. The body is empty."""


MAX_TOLD: Final = 64 * 1024
"""Bytes of one event at most."""


_KINDS: Final = {int(kind): kind for kind in Kind}


K = TypeVar("K", bound=IntEnum)


class FrameHeader(NamedTuple, Generic[K]):
    """Decoded header of a frame."""

    kind: K
    number: int
    length: int


Header = FrameHeader[Kind]


class GarbageError(Exception):
    """Raised for bytes that are no valid frame."""


def lost(reason: str, details: str = "") -> bytes:
    """Return the body of a LOST reply: a reason for the error text, and details for a note."""
    return "\0".join((reason.replace("\0", "\\0"), details)).encode(errors="replace")


def reason_and_details(reply: bytes | bytearray) -> tuple[str, str]:
    """Decode the body of a LOST reply."""
    reason, _, details = reply.decode(errors="replace").partition("\0")
    return reason, details


def frame(kind: Kind, number: int, body: bytes) -> bytes:
    """Encode a frame."""
    return HEADER.pack(MAGIC, kind, number, len(body)) + body


def header_of(data: bytes | bytearray | memoryview) -> Header:
    """Decode the header of a frame between pool and worker; raise `GarbageError` if it is invalid."""
    return read_header(data, MAGIC, _KINDS)


def read_header(data: bytes | bytearray | memoryview, magic: bytes, kinds: Mapping[int, K]) -> FrameHeader[K]:
    """Decode a header with these magic bytes and kinds, or raise `GarbageError`; `remote` has its own of both."""
    begin, code, number, length = HEADER.unpack(data)
    kind = kinds.get(code)
    if begin != magic or kind is None:
        raise GarbageError(f"{bytes(data)!r} begins no frame")
    return FrameHeader(kind, number, length)


_LENGTH: Final = struct.Struct("!I")


def call(carried: dict[str, Any], pickled: bytes) -> bytes:
    """Encode the body of a CALL frame: injected context and pickled call."""
    try:
        along = marshal.dumps(carried)  # takes a tenth of the time of JSON; both ends are the same interpreter
    except ValueError:  # marshal rejects subclasses of `str`, `int` and `float`; JSON makes them plain
        along = marshal.dumps(json.loads(json.dumps(carried)))
    return _LENGTH.pack(len(along)) + along + pickled


def parts_of(call: bytes | bytearray) -> tuple[dict[str, Any], memoryview]:
    """Split the body of a CALL frame into injected context and pickled call."""
    view = memoryview(call)
    end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    return marshal.loads(view[_LENGTH.size : end]), view[end:]  # noqa: S302 - workers trust their pool


BEGUN_COUNTER: Final = struct.Struct("!Q")
"""Layout of the begun counter: a file in which a worker writes the number of each call before it begins it.

The file outlives the worker, so the pool can tell a call that began from one that did not. In a dedicated worker, all
calls with smaller numbers have begun, too.
"""


def receive_frame(sock: socket, files: list[int] | None = None) -> tuple[int, bytes | bytearray] | None:
    """Block until a frame has arrived; return call number and body, or `None` if the other end has closed.

    The peer must not send another frame before this one is answered: surplus bytes would be lost. A file sent with the
    frame is appended to `files`; without such a list it is dropped.
    """
    if files is None:
        data = sock.recv(64 * 1024)
    else:
        from callboard_actors._engine._kernel import receive_with_files  # `remote` uses frames without it

        data, sent = receive_with_files(sock, 64 * 1024, 1)
        files += sent
    # Usually one `recv` gets the whole frame; the lines below complete a partial header or body.
    if data and len(data) < HEADER.size:
        data += receive_exactly(sock, HEADER.size - len(data)) or b""
    if len(data) < HEADER.size:
        return None
    _, number, length = header_of(data[: HEADER.size])
    body = data[HEADER.size :]
    if len(body) == length:
        return number, body
    rest = receive_exactly(sock, length - len(body))
    return None if rest is None else (number, body + rest)


def receive_exactly(sock: socket, length: int) -> bytearray | None:
    """Block until `length` bytes have arrived; return `None` if the other end closes before."""
    data = bytearray(length)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return data


# Receiving from a worker.

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
