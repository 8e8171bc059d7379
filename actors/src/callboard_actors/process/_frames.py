"""What goes over the sockets between pool and worker: calls and their replies, each a header and a body."""

import json
import marshal
import struct
from collections.abc import Mapping
from enum import IntEnum
from socket import socket
from typing import Any, Final, Generic, NamedTuple, TypeVar

MAGIC: Final = b"cb"
HEADER: Final = struct.Struct("!2sBQQ")
"""Magic, kind, number of the call, length of the body."""


class Kind(IntEnum):
    """What the body of a frame is."""

    CALL = 1
    """A call: what is carried with it, as data, and a pickle of a function and its arguments."""
    VALUE = 2
    """A pickle of what it returned."""
    RAISED = 3
    """A pickle of the exception that it raised."""
    LOST = 4
    """Text: why what it returned or raised cannot be sent, and what only its programmer wants to know; see `lost`."""
    TOLD = 5
    """What the call says while it runs, in JSON; so many of them as it likes, and none after its reply."""
    CANCEL = 6
    """To a seat: a call is to end. It has no body."""


MAX_TOLD: Final = 64 * 1024
"""Bytes of what a call says at once."""


_KINDS: Final = {int(kind): kind for kind in Kind}


K = TypeVar("K", bound=IntEnum)


class FrameHeader(NamedTuple, Generic[K]):
    """The beginning of a frame, read: its kind, what it is about, by its number, and the length of its body."""

    kind: K
    number: int
    length: int


Header = FrameHeader[Kind]


class GarbageError(Exception):
    """Bytes that are no frame."""


def lost(reason: str, details: str = "") -> bytes:
    """The body of a reply that has been lost: why, for anybody, and details."""
    return "\0".join((reason.replace("\0", "\\0"), details)).encode(errors="replace")


def reason_and_details(reply: bytes | bytearray) -> tuple[str, str]:
    """Why a reply has been lost, and the details of it."""
    reason, _, details = reply.decode(errors="replace").partition("\0")
    return reason, details


def frame(kind: Kind, number: int, body: bytes) -> bytes:
    """A frame as it is sent: its header, and its body behind it."""
    return HEADER.pack(MAGIC, kind, number, len(body)) + body


def header_of(data: bytes | bytearray | memoryview) -> Header:
    """Read the header of a frame, whoever has written it.

    Raises:
        GarbageError: it is none.
    """
    return read_header(data, MAGIC, _KINDS)


def read_header(data: bytes | bytearray | memoryview, magic: bytes, kinds: Mapping[int, K]) -> FrameHeader[K]:
    """Read the header of a frame that begins so and is of one of these kinds; what is sent elsewhere has its own.

    Raises:
        GarbageError: it is none.
    """
    begin, code, number, length = HEADER.unpack(data)
    kind = kinds.get(code)
    if begin != magic or kind is None:
        raise GarbageError(f"{bytes(data)!r} begins no frame")
    return FrameHeader(kind, number, length)


_LENGTH: Final = struct.Struct("!I")


def call(carried: dict[str, Any], pickled: bytes) -> bytes:
    """The body of a call."""
    try:
        along = marshal.dumps(carried)  # read by the same interpreter, in a tenth of the time of JSON
    except ValueError:  # there are subclasses of text or numbers in it
        along = marshal.dumps(json.loads(json.dumps(carried)))
    return _LENGTH.pack(len(along)) + along + pickled


def parts_of(call: bytes | bytearray) -> tuple[dict[str, Any], memoryview]:
    """What is carried with a call, and its pickle."""
    view = memoryview(call)
    end = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    return marshal.loads(view[_LENGTH.size : end]), view[end:]  # noqa: S302 - the pool is trusted by its workers


NOTEBOOK: Final = struct.Struct("!Q")
"""What a worker writes down when it begins a call: its number. It outlives the worker.

In a seat, the calls with smaller numbers have begun before.
"""


def receive_frame(sock: socket, files: list[int] | None = None) -> tuple[int, bytes | bytearray] | None:
    """Block until a frame is there, the number and the body of a call; `None` if the other end has closed.

    Nothing may follow it that has not been asked for. A file that comes with it is appended to `files`; without such
    a list it is not received.
    """
    if files is None:
        data = sock.recv(64 * 1024)
    else:
        from callboard_actors.process._kernel import receive_with_files  # what is sent elsewhere has frames without it

        data, sent = receive_with_files(sock, 64 * 1024, 1)
        files += sent
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
    """Block until so many bytes are there; `None` if the other end has closed before."""
    data = bytearray(length)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return data
