"""The wire of a process whose client has started it: its stdin and stdout, which nobody else reads or writes.

While it is claimed, what else the process prints goes to stderr, and who reads its stdin finds nothing there: tools,
what they start, the module that has them.
"""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager, redirect_stdout, suppress

import anyio

_AT_ONCE = 4096
"""Bytes that can be written without waiting, where a pipe or a socket has room at all: POSIX's PIPE_BUF."""
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class Wire:
    """Lines from the client, and to it. No thread waits for them, so that nothing has to end first when we do.

    Args:
        source: the descriptor to read.
        sink: the descriptor to write.
    """

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._hung_up = False
        self._waiting: anyio.CancelScope | None = None

    def hang_up(self) -> None:
        """Read no more: for who reads, the client has left."""
        self._hung_up = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def __aiter__(self) -> AsyncIterator[str]:
        """The lines that come, until the client leaves or `hang_up` is called."""
        rest = b""
        while chunk := await self._chunk():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")

    async def _chunk(self) -> bytes:
        if self._hung_up:
            return b""
        with anyio.CancelScope() as self._waiting:
            await _until(anyio.wait_readable, self._source)
            return os.read(self._source, 1 << 16)
        return b""

    async def write(self, text: str) -> None:
        """Write all of it, as the client takes it; for one that has left, nothing is written."""
        left = memoryview(text.encode())
        try:
            while left:
                await _until(anyio.wait_writable, self._sink)
                left = left[os.write(self._sink, left[:_AT_ONCE]) :]
        except (BrokenPipeError, ConnectionResetError):
            self.hang_up()

    async def flush(self) -> None:
        """Do nothing: what was written is with the client."""


async def _until(ready: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    """Wait for a descriptor; a file on disk is always ready, and cannot be waited for."""
    with suppress(PermissionError):
        await ready(descriptor)


@contextmanager
def claimed_stdio() -> Generator[Wire]:
    """Have stdin and stdout of the process for the client alone, until the block is left."""
    sys.stdout.flush()
    source, sink = os.dup(_STDIN), os.dup(_STDOUT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STDIN)
    os.dup2(_STDERR, _STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield Wire(source, sink)
    finally:
        sys.stdout.flush()  # what somebody has written who had it before
        os.dup2(source, _STDIN)
        os.dup2(sink, _STDOUT)
        for descriptor in (nothing, source, sink):
            os.close(descriptor)
