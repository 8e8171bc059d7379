"""An MCP server as a process that we start: messages are lines on its stdin and stdout.

The SDK has such a transport. This one bounds what a server may write, keeps the last that it says on stderr for the
error, and ends the whole process group in every case.
"""

import json
import logging
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress

import anyio
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from callboard_actors.mcp._link import Link
from callboard_actors.mcp._targets import Command

_log = logging.getLogger("callboard")

_CHUNK = 64 * 1024
_AHEAD = 64
"""Messages that are read before they are wanted."""
_TAIL = 2000
"""Bytes of stderr that are kept for an error."""
_NONSENSE = 1000
"""Lines that are no messages, one after the other, after which it is no MCP that a server speaks."""
_LOOK = 0.01
"""Seconds between two looks at whether a process has ended; to wait for it would be to wait for its pipes, too."""
_LAST_WORDS = 0.5
"""Seconds for a server that has closed its stdout to end, and so to say how; and for what it has said to arrive."""
_STUCK = 2.0
"""Seconds for a killed process to go; one that is stuck in the kernel is not waited for."""
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def stdio_transport(
    command: Command, link: Link, *, max_message: int, grace: float
) -> AsyncGenerator[tuple[Incoming, Outgoing]]:
    """Start a server, and end it with all that it has started.

    Args:
        command: which one.
        link: told when it is of no more use, and why.
        max_message: bytes that one message of it may have.
        grace: seconds for it to end, once when its stdin is closed, and once when it is asked to by SIGTERM.

    Raises:
        OSError: it cannot be started.
    """
    process = await anyio.open_process(
        command.argv, cwd=command.cwd, env=get_default_environment() | dict(command.env), start_new_session=True
    )
    child = _Child(process, link, max_message)
    into, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](_AHEAD)
    outgoing, out_of = anyio.create_memory_object_stream[SessionMessage](_AHEAD)
    async with anyio.create_task_group() as group:
        group.start_soon(child.read, into)
        group.start_soon(child.hear)
        group.start_soon(child.write, out_of)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                incoming.close()
                outgoing.close()
                await child.end(grace)
            group.cancel_scope.cancel()


class _Child:
    """The process of a server."""

    def __init__(self, process: Process, link: Link, max_message: int) -> None:
        self._process = process
        self._link = link
        self._max_message = max_message
        self._said = b""
        """The last of its stderr."""
        self._has_said_all = anyio.Event()
        self._nonsense = 0
        """Lines since the last message."""
        self._wrote = b""
        """The last of them."""
        link.remarks = self._remarks

    async def read(self, into: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Hand on its messages until it has no more."""
        async with into:
            try:
                async with aclosing(self._lines()) as lines:
                    async for line in lines:
                        if (message := self._message(line)) is not None:
                            await _put(into, message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._drain()  # nobody listens any more; it is not to hang for that
            if not self._link.is_lost:
                self._link.lose(await self._why())

    async def _lines(self) -> AsyncGenerator[bytes]:
        stdout = self._process.stdout
        assert stdout is not None
        parts: list[bytes] = []
        size = 0
        with suppress(anyio.EndOfStream, *_GONE):
            while not self._link.is_lost:
                *lines, rest = (await stdout.receive(_CHUNK)).split(b"\n")
                for line in lines:
                    yield b"".join([*parts, line])
                    parts, size = [], 0
                parts.append(rest)
                size += len(rest)
                if size > self._max_message:
                    self._link.lose(f"it sent a message of more than {self._max_message} bytes")

    def _message(self, line: bytes) -> SessionMessage | None:
        """The message of a line; what is none is counted, for there are servers that write to stdout besides."""
        if not line.strip():
            return None
        try:
            message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            self._nonsense += 1
            self._wrote = line[:_TAIL]
            if self._nonsense >= _NONSENSE:
                self._link.lose(f"it wrote {_NONSENSE} lines that are no messages of MCP")
            return _no_answer(line)
        self._nonsense = 0
        return message

    async def _drain(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        with suppress(anyio.EndOfStream, *_GONE):
            while True:
                await stdout.receive(_CHUNK)

    async def hear(self) -> None:
        """Keep the last that it says on stderr."""
        stderr = self._process.stderr
        assert stderr is not None
        with suppress(anyio.EndOfStream, *_GONE):
            while True:
                said = await stderr.receive(_CHUNK)
                self._said = (self._said + said)[-_TAIL:]
        self._has_said_all.set()

    async def write(self, out_of: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Hand on what it is sent."""
        stdin = self._process.stdin
        assert stdin is not None
        async with out_of:
            try:
                async for one in out_of:
                    text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await stdin.send(text.encode() + b"\n")
            except _GONE:
                self._link.lose(await self._why())

    async def _why(self) -> str:
        with anyio.move_on_after(_LAST_WORDS):
            await self._has_ended(_LAST_WORDS)
            await self._has_said_all.wait()
        code = self._process.returncode
        if code is None:
            return "it has closed its stdin or its stdout"
        if code < 0:
            return f"its process was ended by {_signal_name(-code)}"
        return f"its process has ended with exit code {code}"

    def _remarks(self) -> str:
        """What it has written besides messages, for an error."""
        found = ""
        if self._wrote:
            found += f"; on stdout, which is for messages, it wrote {_as_text(self._wrote[-200:])!r}"
        if self._said.strip():
            found += f"; the last on its stderr: {_as_text(self._said)!r}"
        return found

    async def end(self, grace: float) -> None:
        """End it, and whatever it has started and left."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            with anyio.move_on_after(grace), suppress(*_GONE):
                await stdin.aclose()
            if not await self._has_ended(grace):
                self._signal(signal.SIGTERM)
                await self._has_ended(grace)
        finally:
            self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        with anyio.move_on_after(_STUCK), suppress(*_GONE):
            await self._process.aclose()

    async def _has_ended(self, within: float) -> bool:
        with anyio.move_on_after(within):
            while self._process.returncode is None:
                await anyio.sleep(_LOOK)
        return self._process.returncode is not None

    def _signal(self, number: int) -> None:
        """To its whole group, which it leads; that it has ended itself says nothing of the others."""
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, number)
            else:
                self._process.terminate()


async def _put(into: MemoryObjectSendStream[SessionMessage | Exception], message: SessionMessage) -> None:
    """Send without a turn of the event loop where there is room; each answer would pay for it."""
    try:
        into.send_nowait(message)
    except anyio.WouldBlock:
        await into.send(message)


def _no_answer(line: bytes) -> SessionMessage | None:
    """For whoever waits for what should have been an answer, an error that shows it; else they would wait for ever."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    number = found.get("id") if isinstance(found, dict) and "method" not in found else None
    if not isinstance(number, (int, str)) or isinstance(number, bool):
        return None
    error = ErrorData(code=PARSE_ERROR, message=f"it answered with what is no message of MCP: {_as_text(line[:200])!r}")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error))


def _as_text(said: bytes) -> str:
    return said.decode(errors="replace").strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
