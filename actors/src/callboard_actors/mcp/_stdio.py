"""Transport to an MCP server in a child process; messages are lines on its stdin and stdout."""

# Four repairs of `mcp.client.stdio`, each needed until the SDK has it (checked with mcp 2.3.0). That transport
# - has no limit for the length of a line: a server that never ends one fills the memory, and each further piece is
#   joined to all earlier ones (no issue is known; the TypeScript SDK has had a pull request:
#   https://github.com/modelcontextprotocol/typescript-sdk/pull/2245);
# - writes stderr to a file without any limit, and does not put its end into the error of a lost connection
#   (https://github.com/modelcontextprotocol/python-sdk/issues/1806);
# - answers an unreadable line with an exception that fails no request, so the caller of that request waits for ever
#   (https://github.com/modelcontextprotocol/python-sdk/pull/1595);
# - signals the process group only if the process itself outlives its grace, so children of a server that exits by
#   itself stay alive (https://github.com/modelcontextprotocol/python-sdk/pull/2773); and the grace is a constant
#   (https://github.com/modelcontextprotocol/python-sdk/issues/1364).
# `tests/mcp/test_sdk_repairs.py` fails when a version of the SDK no longer needs one of them.

import json
import logging
import os
import re
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

import anyio
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import types
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from callboard_actors._engine._errors import signal_name
from callboard_actors.mcp._lines import CLOSED_ERRORS, MessageSizes, TooManyValuesError, check_values, lines_of
from callboard_actors.mcp._link import Link, error_response

_log = logging.getLogger("callboard")

_CHUNK = 64 * 1024
_MOST_READ_AHEAD = 64
"""Maximum number of messages that are read ahead; further output of the server waits in the pipe."""
_TAIL = 2000
"""Number of last bytes of stderr that are kept for an error."""
_NONSENSE = 1000
"""Number of consecutive stdout lines that are not messages, after which the connection is given up."""
_CHECK_INTERVAL = 0.01
"""Seconds between two checks whether the process has ended. Waiting for it would also wait for its pipes, which
grandchildren may keep open."""
_END_WAIT = 0.5
"""Maximum seconds to wait for the exit code and the rest of stderr, after the server has closed stdin or stdout."""
_KILL_WAIT = 2.0
"""Maximum seconds to wait for the end of a killed process; a process that hangs in the kernel may never end."""

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def stdio_transport(
    argv: Sequence[str], link: Link, *, env: Mapping[str, str], cwd: str | None, sizes: MessageSizes, grace: float
) -> AsyncGenerator[tuple[Incoming, Outgoing]]:
    """Run an MCP server's process during an `async with` block; then end it and all processes that it has started."""
    # A new session makes the process a group leader, so that its whole group can be killed.
    process = await anyio.open_process(argv, cwd=cwd, env=get_default_environment() | dict(env), start_new_session=True)
    child = _Child(process, link, sizes)
    incoming_sender, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](_MOST_READ_AHEAD)
    outgoing, outgoing_receiver = anyio.create_memory_object_stream[SessionMessage](_MOST_READ_AHEAD)
    async with anyio.create_task_group() as group:
        group.start_soon(child.read, incoming_sender)
        group.start_soon(child.read_stderr)
        group.start_soon(child.write, outgoing_receiver)
        try:
            yield incoming, outgoing
        finally:
            # Shielded: a cancelled connection must not leave processes behind.
            with anyio.CancelScope(shield=True):
                incoming.close()
                outgoing.close()
                await child.end(grace)
            group.cancel_scope.cancel()


class _Child:
    """Process of an MCP server, with its stdin, stdout and stderr."""

    def __init__(self, process: Process, link: Link, sizes: MessageSizes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._link = link
        self._sizes = sizes
        self._stderr_tail = b""
        """Last bytes that the process wrote to stderr."""
        self._stderr_has_ended = anyio.Event()
        self._nonsense = 0
        """Number of lines on stdout since the last one that was a message."""
        self._last_nonsense = b""
        """Last line on stdout that was not a message."""
        link.remarks = self._remarks

    async def read(self, into: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Read messages from the server's stdout, and pass them to the SDK, until stdout ends."""
        async with into, aclosing(lines_of(self._stdout, self._sizes.max_message)) as lines:
            try:
                async for line in lines:
                    if (message := await self._message(line)) is not None:
                        await _put(into, message)
                    if self._link.lost.is_set():
                        break
            except anyio.DelimiterNotFound:
                self._link.lose(f"it sent a message of more than {self._sizes.max_message} bytes")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                # The session is closed; a full pipe must not block the process from ending.
                with suppress(anyio.EndOfStream, *CLOSED_ERRORS):
                    while True:
                        await self._stdout.receive(_CHUNK)
            if not self._link.lost.is_set():
                self._link.lose(await self._end_reason())

    async def _message(self, line: bytes) -> SessionMessage | None:
        """Return the message in a line of the server's stdout, or `None` if the line is not a message."""
        try:
            await check_values(line, self._sizes.max_values)
        except TooManyValuesError as error:
            if (number := _request_id_in(line)) is not None:
                return error_response(number, str(error))
            self._link.lose(str(error))
            return None
        # Some servers print other lines, too; only many in a row are an error.
        if not line.strip():
            return None
        try:
            message = SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            self._nonsense += 1
            self._last_nonsense = line[:_TAIL]
            if self._nonsense >= _NONSENSE:
                self._link.lose(f"it wrote {_NONSENSE} lines that are no messages of MCP")
            return _error_for(line)
        self._nonsense = 0
        return message

    async def read_stderr(self) -> None:
        """Read stderr until it ends, and keep its last bytes. A pipe that nobody reads would block the server."""
        with suppress(anyio.EndOfStream, *CLOSED_ERRORS):
            while True:
                chunk = await self._stderr.receive(_CHUNK)
                self._stderr_tail = (self._stderr_tail + chunk)[-_TAIL:]
        self._stderr_has_ended.set()

    async def write(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write the SDK's messages to the server's stdin."""
        async with outgoing:
            try:
                async for message in outgoing:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await self._stdin.send(text.encode() + b"\n")
            except CLOSED_ERRORS:
                self._link.lose(await self._end_reason())

    async def _end_reason(self) -> str:
        with anyio.move_on_after(_END_WAIT):
            await self._has_ended(_END_WAIT)
            await self._stderr_has_ended.wait()
        code = self._process.returncode
        if code is None:
            return "it has closed its stdin or its stdout"
        if code < 0:
            return f"its process was ended by {signal_name(-code)}"
        return f"its process has ended with exit code {code}"

    def _remarks(self) -> str:
        """Return the end of stderr and the last invalid line of stdout, for error texts; "" if both are empty."""
        text = ""
        if self._last_nonsense:
            text += f"; on stdout, which is for messages, it wrote {_as_text(self._last_nonsense[-200:])!r}"
        if self._stderr_tail.strip():
            text += f"; the last on its stderr: {_as_text(self._stderr_tail)!r}"
        return text

    async def end(self, grace: float) -> None:
        """End the process of the server and all other processes of its group."""
        try:
            with anyio.move_on_after(grace), suppress(*CLOSED_ERRORS):
                await self._stdin.aclose()
            if not await self._has_ended(grace):
                self._signal(signal.SIGTERM)
                await self._has_ended(grace)
        finally:
            # Always, even if the process has ended by itself: processes that it started may still run.
            self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        with anyio.move_on_after(_KILL_WAIT), suppress(*CLOSED_ERRORS):
            await self._process.aclose()

    async def _has_ended(self, timeout: float) -> bool:
        with anyio.move_on_after(timeout):
            while self._process.returncode is None:
                await anyio.sleep(_CHECK_INTERVAL)
        return self._process.returncode is not None

    def _signal(self, number: int) -> None:
        """Send a signal to the process group, which may have members even after its leader has ended."""
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, number)
            else:
                self._process.terminate()


async def _put(into: MemoryObjectSendStream[SessionMessage | Exception], message: SessionMessage) -> None:
    """Send a message into a stream, without a switch to another task if the stream has room."""
    # A switch would slow down every answer.
    try:
        into.send_nowait(message)
    except anyio.WouldBlock:
        await into.send(message)


_ID: Final = rb'"jsonrpc": ?"2.0", ?"id": ?([0-9]{1,18}|"[^"\\]{1,100}")'
_ID_BEFORE_RESULT: Final = re.compile(rb'\{%b, ?"(?:result|error)":' % _ID)
_ID_AFTER_RESULT: Final = re.compile(rb", ?%b\}\s*$" % _ID)


def _request_id_in(line: bytes) -> int | str | None:
    """Return the id in an answer that is too large for a parser; `None` if it is not where SDKs write it."""
    match = _ID_BEFORE_RESULT.match(line)
    if match is None and line.startswith(b'{"result":'):
        match = _ID_AFTER_RESULT.search(line, len(line) - _TAIL)
    return None if match is None else json.loads(match[1])


def _error_for(line: bytes) -> SessionMessage | None:
    """Return an error response in place of an invalid line that answers a request; `None` for any other line."""
    # Without the error, the caller of the request would wait for ever.
    try:
        message = json.loads(line)
    except RecursionError:
        message = {"id": _request_id_in(line)}
    except ValueError:
        return None
    number = message.get("id") if isinstance(message, dict) and "method" not in message else None
    if not isinstance(number, (int, str)) or isinstance(number, bool):
        return None
    return error_response(number, f"it answered with what is no message of MCP: {_as_text(line[:200])!r}")


def _as_text(data: bytes) -> str:
    return data.decode(errors="replace").strip()
