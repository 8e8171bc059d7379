"""Numbered chunks of a thread's started runs, in a bounded buffer that several readers read at their own speed."""

import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any

from anyio.lowlevel import checkpoint

from callboard._loops._shared_event import SharedEvent
from callboard.agent._stream import Chunk
from callboard.exceptions import ChunksDroppedError


class ChunkLog:
    """Last chunks of the runs of one thread of conversation; filled from any thread, read in any event loop.

    The numbers of the chunks are consecutive. The first is the time in milliseconds at which the log was made, so that
    a number from an earlier process is older than all chunks of this log, and its reader gets an error.

    Args:
        thread_id: id of the thread of conversation, for errors.
        size: largest number of chunks in the buffer.
    """

    def __init__(self, thread_id: str, size: int) -> None:
        self._thread_id = thread_id
        self._lock = threading.Lock()  # guards the fields below: callback handlers put chunks from worker threads
        self._chunks: deque[Any] = deque(maxlen=size)
        self.last = time.time_ns() // 1_000_000
        """Number of the last chunk."""
        self._change = SharedEvent()
        """Set at the next chunk, and at the end of a run."""

    def resize(self, size: int) -> None:
        """Change the size of the buffer for the next run; the newest chunks stay."""
        with self._lock:
            self._chunks = deque(self._chunks, maxlen=size)

    def put(self, chunk: Any) -> None:
        with self._lock:
            self._chunks.append(chunk)
            self.last += 1
        self.wake_readers()

    @property
    def has_waiting_reader(self) -> bool:
        return self._change.has_waiters

    def wake_readers(self) -> None:
        """Let readers that wait look at the log again."""
        with self._lock:
            change, self._change = self._change, SharedEvent()
        change.set()

    async def read(self, after: int, end: Callable[[], int | None]) -> AsyncGenerator[tuple[int, Any]]:
        """Yield the chunks with numbers greater than `after`, each with its number.

        Args:
            after: number of the last chunk that the reader has got.
            end: function that returns the number of the last chunk for the reader, once the run has ended; else `None`.

        Raises:
            ChunksDroppedError: if the buffer has dropped the chunk after `after`, or it was in another process.
        """
        while True:
            with self._lock:
                change, end_number = self._change, end()
                last, first = self.last, self.last - len(self._chunks) + 1
                # A reader that has the last chunk of its run misses nothing if later runs have filled the buffer.
                if end_number is not None and end_number <= after <= last:
                    return
                if not first - 1 <= after <= last:
                    raise ChunksDroppedError(self._thread_id, after, first - 1)
                chunk = self._chunks[after - first + 1] if after < last else None
            if after < last:
                after += 1
                yield after, chunk
            else:
                await change.wait()


class LoggedChunks:
    """Queue of a started run's chunks: they go to the log of the thread, and the run waits for no reader.

    Args:
        log: log of the run's thread.
        modes: stream modes of the chunks that the log keeps.
        form: function that returns a chunk in the form that the caller of the run has asked for.
    """

    def __init__(self, log: ChunkLog, modes: Collection[str], form: Callable[[Chunk], Any]) -> None:
        self._log = log
        self._modes = modes
        self._form = form

    def put(self, chunk: Chunk) -> None:
        if chunk[1] in self._modes:
            self._log.put(self._form(chunk))

    async def wait_for_reader(self) -> None:
        await checkpoint()
