"""A server process started by its client: stdin and stdout belong to the protocol, and the process ends in order."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import stdio_client

from callboard_actors.mcp._lines import lines_of
from callboard_actors.mcp_service import _stdio
from callboard_actors.mcp_service._service import Service
from callboard_actors.mcp_service._stdio import StdioConnection, serve_stdio

from ._clients import Person, fill_in, in_both_eras, text_in
from ._commands import COMMAND, PATIENCE, ROOT, Process, appears_soon, arguments, by_stdio, running_process

pytestmark = pytest.mark.real_clock

_MODERN = {
    "protocolVersion": "2026-07-28",
    "clientInfo": {"name": "test", "version": "1"},
    "clientCapabilities": {},
}
"""Metadata that a client sends with each request since version 2026."""


@pytest.mark.parametrize("era", [pytest.param("legacy", marks=pytest.mark.exhaustive), "2026-07-28"])
@pytest.mark.exhaustive
async def test_what_is_printed_does_not_reach_the_client(era: str, anyio_backend_name: str, tmp_path: Path) -> None:
    """Output of the module, its tools and their child processes goes to stderr; the stdin of child processes is empty.

    A foreign line in the stream would make many clients close the connection.
    """
    garbage: list[object] = []

    async def hear(message: object) -> None:
        if isinstance(message, Exception):
            garbage.append(message)

    with (tmp_path / "errors").open("w") as errors:
        line = stdio_client(by_stdio("tools", "--backend", anyio_backend_name), errlog=errors)
        async with Client(line, mode=era, message_handler=hear) as client:
            result = await client.call_tool("add", {"one": 1, "other": 2})

    assert result.structured_content == {"sum": 3, "read": 0}
    assert garbage == []
    stderr_lines = (tmp_path / "errors").read_text().splitlines()
    assert {"loaded", "printed", "written", "by its number", "by a child"} <= set(stderr_lines)


@pytest.mark.exhaustive
@in_both_eras
async def test_questions_cross_the_wire(era: str, anyio_backend_name: str) -> None:
    """Questions of a tool and approvals work in either version."""
    person = Person(fill_in(answer="in May"), fill_in(decision="accept"))
    async with Client(
        by_stdio("node", "--backend", anyio_backend_name), mode=era, elicitation_callback=person
    ) as client:
        planned = await client.call_tool("plan", {"town": "Oslo"})
        deleted = await client.call_tool("delete", {"path": "a.txt"})

    assert (text_in(planned), text_in(deleted)) == ("Oslo: in May", "a.txt deleted")


@contextmanager
def staying(folder: Path, *options: str, seconds: float = 600) -> Iterator[Process]:
    """Start a server and a call of its tool `stay`, which leaves notes in a folder."""
    with running_process(*arguments("tools", *options)) as server:
        server.shake_hands()
        server.send("tools/call", 1, name="stay", arguments={"seconds": seconds, "folder": str(folder)})
        appears_soon(folder / "began")
        yield server


@pytest.mark.exhaustive
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_client_that_leaves_ends_its_calls_and_the_process(loop: str, tmp_path: Path) -> None:
    """No client is left to read the results."""
    with staying(tmp_path, "--backend", loop) as server:
        code, _, error = server.end()

    assert code == 0, error
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("loop", ["asyncio", pytest.param("trio", marks=pytest.mark.exhaustive)])
@pytest.mark.exhaustive
def test_a_signal_lets_calls_finish_and_their_answers_arrive(loop: str, tmp_path: Path) -> None:
    """The process ends although the client keeps stdin open."""
    with staying(tmp_path, "--backend", loop, seconds=2) as server:
        server.signal()
        code = server.process.wait(PATIENCE)
        answer = server.receive()

    assert code == 0
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (1, "left")


@pytest.mark.exhaustive
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("ending", ["time is over", "second signal"])
def test_a_call_that_does_not_finish_in_time_is_ended(loop: str, ending: str, tmp_path: Path) -> None:
    """The client gets an error, and the exit code says that an outcome is unknown."""
    drain = "0" if ending == "time is over" else "600"
    with staying(tmp_path, "--backend", loop, "--drain", drain) as server:
        server.signal()
        if ending == "second signal":
            server.send("tools/call", 2, name="add", arguments={"one": 1, "other": 2})
            assert "drained" in server.receive()["result"]["content"][0]["text"]
            server.signal()
        answer = server.receive()
        code, remaining_output, error = server.end()

    assert answer["result"]["isError"]
    assert "drained" in answer["result"]["content"][0]["text"]
    assert (code, remaining_output) == (4, "")
    assert "stay" in error
    assert (tmp_path / "ended").exists()


@pytest.mark.exhaustive
def test_a_conversation_can_come_from_a_file(tmp_path: Path) -> None:
    """A file is always readable, and event loops cannot poll it."""
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    conversation = tmp_path / "said"
    conversation.write_text(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}) + "\n")
    with conversation.open() as lines:
        done = subprocess.run(
            [*COMMAND, *arguments("tools")], stdin=lines, capture_output=True, cwd=ROOT, timeout=PATIENCE, check=True
        )

    assert json.loads(done.stdout)["id"] == 1


@pytest.fixture
def pipes() -> Iterator[tuple[StdioConnection, FileIO, FileIO]]:
    """Yield a connection, and the two ends of its client."""
    (source, client), (answers, sink) = os.pipe(), os.pipe()
    with FileIO(source), FileIO(client, "w") as asks, FileIO(answers) as hears, FileIO(sink, "w"):
        yield StdioConnection(source, sink), asks, hears


def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


async def test_a_server_that_breaks_ends_with_its_error(monkeypatch: pytest.MonkeyPatch, pipes: Any) -> None:
    """An error inside of the SDK ends the process: the drain must not wait for an end of stdin that has passed."""

    class Broken(Service):
        def server(self) -> Any:
            server = super().server()

            async def run(requests: Any, responses: Any, options: object) -> None:
                async with requests, responses:
                    raise OSError("the server is broken")

            monkeypatch.setattr(server, "run", run)
            return server

    with anyio.fail_after(PATIENCE), pytest.raises(BaseException) as broken:
        await serve_stdio(Broken([add]), pipes[0], drain=600)
    assert broken.group_contains(OSError, match="is broken") or "is broken" in str(broken.value)


async def test_a_line_without_an_end_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, pipes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It would fill the memory. The log says why the connection is closed."""
    monkeypatch.setattr(_stdio, "_MOST_LINE", 100_000)
    wire, client, _ = pipes

    async def send() -> None:
        await anyio.to_thread.run_sync(client.write, b"x" * 60_000)
        await anyio.to_thread.run_sync(client.write, b"x" * 60_000)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(send)
            report = await serve_stdio(Service([add]), wire, drain=600)

    assert report.exit_code == 0
    assert "a line of more than 100000 bytes" in caplog.text


async def test_a_long_line_in_small_pieces_takes_no_longer_than_in_large_ones() -> None:
    """If each piece were joined to all earlier ones, 16 MB in pieces of 1 KB would take a minute."""
    pieces, stream = anyio.create_memory_object_stream[bytes](2**14)
    for _ in range(2**14 - 1):
        pieces.send_nowait(b"x" * 1024)
    pieces.send_nowait(b"\n")
    began = time.process_time()
    async with pieces, stream, aclosing(lines_of(stream, 2**24)) as lines:
        assert await anext(lines) == b"x" * 1024 * (2**14 - 1)
    assert time.process_time() - began < 5


async def test_a_server_whose_client_was_killed_before_its_first_answer_ends_at_once(pipes: Any) -> None:
    """Without a client the process does not wait out the time that calls have to finish."""
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in _MODERN.items()}
    request = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}
    wire, client, answers = pipes
    client.write(json.dumps(request).encode() + b"\n")
    client.close()
    answers.close()
    with anyio.fail_after(PATIENCE):
        report = await serve_stdio(Service([add]), wire, drain=600)
    assert report.exit_code == 0
