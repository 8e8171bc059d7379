"""Connection to the client that started this process: its stdin and stdout, reserved for the protocol.

While they are claimed, all other output of the process goes to stderr, and its standard input is empty. This holds
for the tools, for their subprocesses, and for the module that defines them.
"""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager, redirect_stdout, suppress

import anyio

_AT_ONCE = 4096
"""Bytes that a writable pipe accepts without blocking: PIPE_BUF of POSIX."""
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class StdioConnection:
    """Lines from and to the client, over two file descriptors."""

    # Waits in the event loop and not in a thread: a thread blocked in `read()` would keep the process from ending.

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._hung_up = False
        self._waiting: anyio.CancelScope | None = None

    def hang_up(self) -> None:
        """Stop reading: the iterator ends as if the client had left."""
        self._hung_up = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield the received lines until the client leaves, or until `hang_up()`."""
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
        """Write a text as fast as the client reads it; discard it if the client has left."""
        left = memoryview(text.encode())
        try:
            while left:
                await _until(anyio.wait_writable, self._sink)
                left = left[os.write(self._sink, left[:_AT_ONCE]) :]
        except (BrokenPipeError, ConnectionResetError):
            self.hang_up()

    async def flush(self) -> None:
        """Do nothing: `write()` does not buffer."""


async def _until(ready: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    """Wait until a descriptor is ready. A file on disk is always ready, and raises PermissionError."""
    with suppress(PermissionError):
        await ready(descriptor)


@contextmanager
def claimed_stdio() -> Generator[StdioConnection]:
    """Reserve stdin and stdout of the process for the client during the block."""
    sys.stdout.flush()
    source, sink = os.dup(_STDIN), os.dup(_STDOUT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    # On the level of descriptors: subprocesses and C code use these, and not `sys.stdin` and `sys.stdout`.
    os.dup2(nothing, _STDIN)
    os.dup2(_STDERR, _STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield StdioConnection(source, sink)
    finally:
        sys.stdout.flush()  # buffered output of code that kept the old object must go to stderr
        os.dup2(source, _STDIN)
        os.dup2(sink, _STDOUT)
        for descriptor in (nothing, source, sink):
            os.close(descriptor)
