"""Storage of a command's output: a file of fixed size without a name, written by a worker and read by a shell.

The file holds the head of the output, followed by a ring with the last bytes of the rest. Written output survives a
killed worker. A worker that is not trusted can only spoil its own output.

It is a file and not a memfd, because a command can find its worker's descriptors in /proc. Landlock refuses a file in
a folder that is not granted, but a memfd would let the command write to memory and execute it.
"""

import os
import struct
import tempfile
from typing import Self

from callboard_actors._util._excerpts import Excerpt

_HEADER = struct.Struct("<QQ")  # bytes whose writing has begun, bytes that are written
_TRIES = 20


class _Spool:
    """File of fixed size with the head and the tail of some output; bytes in between are overwritten."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._head = size // 2
        self._ring = size - self._head

    def close(self) -> None:
        """Close the file; its content is gone when every process has closed it."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SpoolWriter(_Spool):
    """Spool in the worker of a command, which writes the output."""

    def __init__(self, fd: int, size: int) -> None:
        super().__init__(os.dup(fd), size)
        self._written = 0

    def write(self, data: bytes) -> None:
        """Append data; bytes between head and tail are overwritten."""
        end = self._written + len(data)
        # Announced before the data changes: a reader that sees another number afterwards reads again.
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
    """Spool in the shell, which creates the file. Raise OSError if there is no room for the file."""

    def __init__(self, size: int) -> None:
        super().__init__(_unnamed_file(_HEADER.size + size), size)
        self._seen = 0

    def fileno(self) -> int:
        """Return the file descriptor to send to a worker."""
        return self._fd

    def look(self) -> Excerpt:
        """Return the output since the last call."""
        end, head, rest = self._looked()
        for _ in range(_TRIES):  # the output of a writer that never pauses is taken as it is
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
        # Allocated now, so that a disk that fills up later does not affect the writer.
        os.posix_fallocate(file.fileno(), 0, size)
        return os.dup(file.fileno())
