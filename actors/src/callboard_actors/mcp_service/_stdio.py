"""MCP service over stdin and stdout of the process, which are reserved for the protocol.

While they are claimed, all other output of the process goes to stderr, and its standard input is empty. This holds
for the tools, for their subprocesses, and for the module that defines them.
"""

# Why stdin and stdout are not claimed by `mcp.server.stdio` (checked with mcp 2.3):
# - It claims them only when it begins to serve, after the user's module was imported and may have printed
#   (https://github.com/modelcontextprotocol/python-sdk/pull/3117).
# - It reads in a thread that cannot be cancelled, so the process would end only with the client's next line, and not at
#   SIGTERM (https://github.com/modelcontextprotocol/python-sdk/issues/3551).
# - It has no limit for the length of a line (no issue is known).
# - It does not wait for running calls (https://github.com/modelcontextprotocol/python-sdk/issues/1739).

import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager, redirect_stdout, suppress
from typing import Any, cast

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.stdio import stdio_server

from callboard import Drained, drain_on_signal
from callboard_actors.mcp._lines import lines_of
from callboard_actors.mcp._link import AnswerStream
from callboard_actors.mcp_service._callers import Context
from callboard_actors.mcp_service._service import PATIENCE, Service

# The connection.

_log = logging.getLogger("callboard")

_WRITE_SIZE = 4096
"""Number of bytes that a pipe accepts without blocking, once it is ready for writing: PIPE_BUF of POSIX."""
_MOST_LINE = 16 * 2**20
"""Maximum bytes of one line of the client. A longer one ends the connection: it would fill the memory."""
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class StdioConnection:
    """Connection to the client: lines that are received and sent over two file descriptors."""

    # Waits in the event loop and not in a thread: a thread blocked in `read()` would keep the process from ending.

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._hung_up = False
        self._waiting: anyio.CancelScope | None = None

    def hang_up(self) -> None:
        """Stop reading. The iterator over received lines ends, as if the client had left."""
        self._hung_up = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield the received lines until the client leaves, or until `hang_up()`."""
        async with aclosing(lines_of(cast("Any", self), _MOST_LINE)) as lines:
            try:
                async for line in lines:
                    yield line.decode(errors="replace")
            except anyio.DelimiterNotFound:
                _log.error("The client has sent a line of more than %d bytes; the connection is closed.", _MOST_LINE)

    async def receive(self) -> bytes:
        """Wait for bytes of the client, and return them; raise `EndOfStream` if it has left, or after `hang_up()`."""
        chunk = b""
        if not self._hung_up:
            with anyio.CancelScope() as self._waiting:
                await _until(anyio.wait_readable, self._source)
                chunk = os.read(self._source, 1 << 16)
        if not chunk:
            raise anyio.EndOfStream
        return chunk

    async def write(self, text: str) -> None:
        """Write a text as fast as the client reads it; discard it if the client has left."""
        remaining = memoryview(text.encode())
        try:
            while remaining:
                await _until(anyio.wait_writable, self._sink)
                remaining = remaining[os.write(self._sink, remaining[:_WRITE_SIZE]) :]
        except (BrokenPipeError, ConnectionResetError):
            self.hang_up()

    async def flush(self) -> None:
        """Do nothing: `write()` does not buffer."""


async def _until(wait_ready: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    """Wait until a file descriptor is ready; `wait_ready` is anyio's `wait_readable` or `wait_writable`."""
    # Return at once for a file on disk, which is always ready: `wait_ready` raises PermissionError for it.
    with suppress(PermissionError):
        await wait_ready(descriptor)


@contextmanager
def claim_stdio() -> Generator[StdioConnection]:
    """Reserve stdin and stdout for the MCP client during the `with` block; yield the connection to the client."""
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


# The service.


async def serve_stdio(service: Service, wire: StdioConnection, drain: float) -> Drained:
    """Serve the connected client until it leaves, or until SIGTERM or SIGINT; return the report of the drain."""
    answers = _Answers(wire)
    # The connection is drained after the calls.
    async with service.open(), drain_on_signal(service, answers, timeout=drain) as shutdown:
        try:
            server = service.server()
            server.middleware.append(answers)
            async with stdio_server(cast("Any", wire), cast("Any", wire)) as (requests, responses):
                await server.run(
                    requests, AnswerStream(responses, answers.settle), server.create_initialization_options()
                )
        finally:
            answers.has_ended.set()  # also after an error, or a drain would wait for ever
    return shutdown.report


class _Answers:
    """Middleware (for the server object of the SDK) that keeps the ids of unanswered requests.

    Its `drain()` waits until all are answered, and then ends the connection.
    """

    def __init__(self, wire: StdioConnection) -> None:
        self.has_ended = anyio.Event()
        """Event that is set when the connection has ended."""
        self._wire = wire
        self._unanswered: set[str | int | None] = set()
        self._all_answered = anyio.Event()

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.request_id is None:
            return await call_next(ctx)
        self._unanswered.add(ctx.request_id)
        try:
            return await call_next(ctx)
        except Exception:
            raise  # the server sends an error response, which `AnswerStream` sees
        except BaseException:
            self.settle(ctx.request_id)  # cancelled: no response will be sent
            raise

    def settle(self, request: str | int | None) -> None:
        """Remove a request from the unanswered requests, because it was answered or needs no answer."""
        self._unanswered.discard(request)
        if not self._unanswered:
            self._all_answered.set()

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Wait until all requests are answered, for `timeout` seconds at most, then end the connection."""
        if not self.has_ended.is_set():
            with anyio.move_on_after(timeout):
                while self._unanswered:
                    self._all_answered = anyio.Event()
                    await self._all_answered.wait()
            self._wire.hang_up()
            await self.has_ended.wait()
        return Drained()
