"""The repairs of `callboard_actors.mcp._stdio` are needed: the SDK's own transport fails where ours does not.

If one of these tests fails, the SDK has learned it: remove the repair and the test.
"""

import os
import signal
import sys
from inspect import signature
from pathlib import Path

import anyio
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest

from tests.process._processes import running

from ._asked import WAIT

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

ASK = SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/list"))


def program(code: str) -> StdioServerParameters:
    """Return a server that runs this code for the first line that it reads."""
    return StdioServerParameters(command=sys.executable, args=["-c", f"import sys; sys.stdin.readline()\n{code}"])


def test_it_has_no_limits_of_its_own() -> None:
    """It has no option for the length of a line, for stderr in errors, or for the grace of a process."""
    options = {"command", "args", "env", "cwd", "encoding", "encoding_error_handler"}
    assert set(StdioServerParameters.model_fields) == options
    assert set(signature(stdio_client).parameters) == {"server", "errlog"}


async def test_it_takes_a_line_of_any_length() -> None:
    """A line that never ended would fill the memory."""
    size = 17 * 2**20
    server = program(
        f'print(\'{{"jsonrpc": "2.0", "id": 1, "result": {{"x": "\' + "x" * {size} + \'"}}}}\', flush=True)'
    )
    with anyio.fail_after(WAIT):
        async with stdio_client(server) as (read, write):
            await write.send(ASK)
            message = await read.receive()
    assert isinstance(message, SessionMessage)


async def test_an_answer_that_cannot_be_read_answers_no_request() -> None:
    """The caller of the request would wait for ever."""
    server = program('print(\'{"jsonrpc": "2.0", "id": 1, "result": 3}\', flush=True); sys.stdin.read()')
    with anyio.fail_after(WAIT):
        async with stdio_client(server) as (read, write):
            await write.send(ASK)
            assert isinstance(await read.receive(), Exception)


async def test_processes_of_a_server_that_ends_by_itself_stay(tmp_path: Path) -> None:
    """They would hold files and ports for ever."""
    note = tmp_path / "child"
    child = "import subprocess; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    server = program(f"{child}\nopen({str(note)!r}, 'w').write(str(child.pid)); print('begun', flush=True)")
    with anyio.fail_after(WAIT):
        async with stdio_client(server) as (read, write):
            await write.send(ASK)
            await read.receive()
    number = int(note.read_text())
    assert running([number])
    os.kill(number, signal.SIGKILL)
