"""Where the output of a command is kept: a file of fixed size without a name, written by a worker and read by a shell.

The head stands in it as it came, and after it a ring with the last of the rest. What a worker has written is there
even if it was killed; and a worker that is not trusted can spoil its own output with it, and nothing else.

A file and no memory (memfd): Landlock refuses a file in a folder that is not granted although a command can find it in
/proc, by the descriptors of its worker. It would let the command write to memory there, and execute it.
"""

import os
import struct
import tempfile
from typing import Self

from callboard_actors._excerpts import Excerpt

_HEADER = struct.Struct("<QQ")  # bytes whose writing has begun, bytes that are written
_TRIES = 20


class _Spool:
    """A file of fixed size that has the head of some output and its tail; what is between the two is overwritten."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._head = size // 2
        self._ring = size - self._head

    def close(self) -> None:
        """Close the file; what it holds is gone when all have."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SpoolWriter(_Spool):
    """A spool as the worker of a command has it: it writes there what the command does."""

    def __init__(self, fd: int, size: int) -> None:
        super().__init__(os.dup(fd), size)
        self._written = 0

    def write(self, data: bytes) -> None:
        """Add to it; what was in the middle goes."""
        end = self._written + len(data)
        os.pwrite(self._fd, _HEADER.pack(end, self._written), 0)
        if (room := self._head - self._written) > 0:
            os.pwrite(self._fd, data[:room], _HEADER.size + self._written)
            data = data[room:]
        data = data[-self._ring :]
        if data:
            start = (end - len(data) - self._head) % self._ring
            first = self._ring - start
            base = _HEADER.size + self._head
            os.pwrite(self._fd, data[:first], base + start)
            os.pwrite(self._fd, data[first:], base)
        self._written = end
        os.pwrite(self._fd, _HEADER.pack(end, end), 0)


class SpoolReader(_Spool):
    """A spool as the shell has it, which makes the file.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, size: int) -> None:
        super().__init__(_unnamed_file(_HEADER.size + size), size)
        self._seen = 0

    def fileno(self) -> int:
        """Return the descriptor that a worker is to be sent."""
        return self._fd

    def look(self) -> Excerpt:
        """What has been written since the last look."""
        end, head, rest = self._looked()
        for _ in range(_TRIES):  # a writer that never rests is read as it is
            if self._header()[0] == end:
                break
            end, head, rest = self._looked()
        left_out = max(0, end - self._seen - len(head) - len(rest))
        self._seen = end
        return Excerpt(head, left_out, rest)

    def _looked(self) -> tuple[int, bytes, bytes]:
        _, end = self._header()
        return end, *self._read(self._seen, end)

    def _header(self) -> tuple[int, int]:
        begun, end = _HEADER.unpack(os.pread(self._fd, _HEADER.size, 0).ljust(_HEADER.size, b"\0"))
        return begun, end

    def _read(self, since: int, end: int) -> tuple[bytes, bytes]:
        head = b""
        if since < self._head:
            head = os.pread(self._fd, max(0, min(end, self._head) - since), _HEADER.size + since)
        begin = max(since, self._head, end - self._ring)
        if begin >= end:
            return head, b""
        ring = os.pread(self._fd, self._ring, _HEADER.size + self._head)
        start = (begin - self._head) % self._ring
        return head, (ring[start:] + ring[:start])[: end - begin]


def _unnamed_file(size: int) -> int:
    with tempfile.TemporaryFile() as file:
        # The blocks are there from the start, so that a disk that fills up later costs the writer nothing.
        os.posix_fallocate(file.fileno(), 0, size)
        return os.dup(file.fileno())
