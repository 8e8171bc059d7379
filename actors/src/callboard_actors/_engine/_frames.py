"""Protocol between pool and worker: frames with a header and a body, for calls, replies and events."""

import json
import marshal
import struct
from collections.abc import Mapping
from enum import IntEnum
from socket import socket
from typing import Any, Final, Generic, NamedTuple, TypeVar

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


NOTEBOOK: Final = struct.Struct("!Q")
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
