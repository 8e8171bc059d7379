"""Output of a cell in its order: from `print`, from C code, and from its child processes."""

import io
import os
import select
import stat
import sys
import threading
from contextlib import suppress
from typing import Any, TextIO

from callboard_actors._util._excerpts import Excerpt

_CHUNK = 64 * 1024
_MOST_AT_END = 64
"""Chunks that are read after a cell has ended, because another writer may never stop."""
_for_ever: list[Any] = []
"""Objects that were `sys.stdout` or `sys.stderr` of a cell. A thread may still print to one, and CPython's `print`
holds no reference to its stream: if the stream were freed, the process would crash.
"""


class Kept:
    """Head and tail of some output."""

    def __init__(self, most: int) -> None:
        self._most_head = most // 2
        self._most_tail = most - most // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def add(self, data: bytes) -> None:
        """Append data; keep the head and the tail, and count the rest."""
        self._size += len(data)
        room = self._most_head - len(self._head)
        self._head += data[:room]
        self._tail += data[max(0, room) :]
        if len(self._tail) > 2 * self._most_tail + _CHUNK:
            del self._tail[: -self._most_tail]

    def taken(self) -> Excerpt:
        """Return the output, and start again empty."""
        tail = bytes(self._tail[-self._most_tail :])
        found = Excerpt(bytes(self._head), self._size - len(self._head) - len(tail), tail)
        self._head.clear()
        self._tail.clear()
        self._size = 0
        return found


class Capture:
    """Capture of file descriptors 1 and 2, `sys.stdout` and `sys.stderr`, while a cell runs.

    They belong to the whole process, so a process can have one interpreter only. The output of a thread that a cell has
    left behind belongs to the cell that runs at that time. Between two cells it belongs to no cell, and goes where the
    process itself writes.
    """

    def __init__(self, most: int) -> None:
        self._kept = Kept(most)
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._replaced: tuple[Any, Any, int, int] | None = None
        self._streams: dict[int, TextIO] = {}

    def begin(self) -> None:
        """Start to capture."""
        if self._pipe is None or not _is_whole(self._pipe):
            self._pipe = self._opened()
        theirs = self._pipe[1]
        self._replaced = sys.stdout, sys.stderr, _copy(1), _copy(2)
        os.dup2(theirs, 1)
        os.dup2(theirs, 2)
        sys.stdout, sys.stderr = self._stream(1), self._stream(2)

    def _stream(self, fd: int) -> TextIO:
        """Return the stream of earlier cells in its original state, or a new one if a cell has broken it."""
        stream = self._streams.get(fd)
        if stream is None or not _is_restored(stream):
            stream = self._streams[fd] = _new_stream(fd)
        return stream

    def _opened(self) -> tuple[int, int]:
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        threading.Thread(target=self._read, args=(ours,), name="callboard-cell-output", daemon=True).start()
        return ours, theirs

    def _read(self, fd: int) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        with suppress(OSError, ValueError):  # the pipe was closed
            while not any(event & (select.POLLNVAL | select.POLLERR) for _, event in poll.poll()):
                with self._lock:
                    if not self._take(fd):
                        return

    def _take(self, fd: int) -> bool:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        self._kept.add(data)
        return bool(data)

    def end(self) -> Excerpt:
        """Restore the former outputs, and return the captured output."""
        assert self._replaced is not None
        assert self._pipe is not None
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):  # a cell may have put any object there
                stream.flush()
            _keep_for_ever(stream)
        sys.stdout, sys.stderr, *former = self._replaced
        self._replaced = None
        for fd, copy in zip((1, 2), former, strict=True):
            os.dup2(copy, fd)
            os.close(copy)
        # Read what is left in the pipe; the lock keeps the thread from taking half of it meanwhile.
        fd = self._pipe[0]
        with self._lock, suppress(OSError):
            for _ in range(_MOST_AT_END):
                before = self._kept._size
                if not self._take(fd) or self._kept._size == before:
                    break
            return self._kept.taken()
        return self._kept.taken()

    def close(self) -> None:
        """Close the pipe, which ends its thread."""
        if self._pipe is not None:
            os.close(self._pipe[1])  # not the reading end: the thread still polls it
            self._pipe = None


def _is_whole(pipe: tuple[int, int]) -> bool:
    """Return whether both ends are still this pipe; a cell may have closed one and opened another file instead."""
    try:
        ours, theirs = map(os.fstat, pipe)
    except OSError:
        return False
    return stat.S_ISFIFO(ours.st_mode) and ours.st_ino == theirs.st_ino


def _copy(fd: int) -> int:
    try:
        return os.dup(fd)
    except OSError:
        return os.open(os.devnull, os.O_RDWR)


def _new_stream(fd: int) -> TextIO:
    raw = io.FileIO(fd, "wb", closefd=False)
    stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
    _keep_for_ever(stream)
    return stream


def _is_restored(stream: Any) -> bool:
    """Undo changes of a cell to a stream; return False if the stream is closed or cannot be restored."""
    try:
        vars(stream).clear()
        stream.reconfigure(
            encoding="utf-8", errors="backslashreplace", newline=None, line_buffering=False, write_through=True
        )
    except Exception:  # a cell has replaced parts of it
        return False
    return not stream.closed


def _keep_for_ever(stream: Any) -> None:
    if all(stream is not kept for kept in _for_ever):
        _for_ever.append(stream)
