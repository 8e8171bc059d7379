"""Faulty servers: the error comes soon and is clear, and no process is left running."""

from pathlib import Path

import anyio
import pytest

from callboard import ActorStartError
from callboard_actors.mcp import McpBounds, McpServer
from tests.process._processes import running

from ._asked import ROOT, WAIT, appears, bad, odd

pytestmark = pytest.mark.real_clock


async def why_not(server: McpServer) -> str:
    """Return the error message of opening a server."""
    with anyio.fail_after(WAIT), pytest.raises(ActorStartError) as caught:
        async with server:
            raise AssertionError("it was opened")
    return str(caught.value)


async def test_one_that_dies_at_once_is_said_to_with_its_last_words() -> None:
    """The last lines on stderr usually say what to do."""
    assert await why_not(McpServer(bad("dies"), cwd=ROOT, name="shop")) == (
        "The actor 'shop' did not start: its process has ended with exit code 3; the last on its stderr: 'no "
        "configuration found'"
    )


async def test_one_that_never_answers_is_given_up_and_ended_with_its_children(tmp_path: Path) -> None:
    """Without a timeout every caller would wait; processes that the server has started are ended, too."""
    reason = await why_not(
        McpServer(
            bad("silent", str(tmp_path / "child")),
            cwd=ROOT,
            name="shop",
            bounds=McpBounds(start_timeout=0.5, grace=0.1),
        )
    )
    assert reason == "The actor 'shop' did not start: it did not answer within 0.5 s"
    child = int((tmp_path / "child").read_text())
    while running([child]):
        await anyio.sleep(0.01)


@pytest.mark.exhaustive
async def test_one_that_is_given_up_by_its_caller_is_ended_too(tmp_path: Path) -> None:
    """The task that waits for the server to start may be cancelled."""
    async with anyio.create_task_group() as group:
        server = McpServer(bad("silent", str(tmp_path / "child")), cwd=ROOT, bounds=McpBounds(grace=0.1))
        group.start_soon(server.__aenter__)
        await appears(tmp_path / "child")
        group.cancel_scope.cancel()
    while not (child := (tmp_path / "child").read_text()):
        await anyio.sleep(0.01)
    while running([int(child)]):
        await anyio.sleep(0.01)


async def test_one_that_speaks_something_else_is_shown_what_it_says() -> None:
    """The command may print a banner or be no MCP server at all, so the error shows its output."""
    reason = await why_not(McpServer(bad("garbage"), cwd=ROOT, bounds=McpBounds(grace=0.1)))
    assert "it wrote 1000 lines that are no messages of MCP" in reason
    assert "'Hello! This is a fine server.'" in reason


async def test_one_that_floods_stderr_is_heard_in_part() -> None:
    """The stderr pipe is always drained, so the server never blocks on it, and only its end is kept."""
    reason = await why_not(McpServer(bad("floods"), cwd=ROOT, bounds=McpBounds(start_timeout=0.5, grace=0.1)))
    assert "did not answer within 0.5 s; the last on its stderr: " in reason
    assert 1000 < len(reason) < 2500


async def test_a_message_that_does_not_end_is_cut_off() -> None:
    """A message without end would use up the memory of the process."""
    reason = await why_not(McpServer(bad("huge"), cwd=ROOT, bounds=McpBounds(max_message=10**6, grace=0.1)))
    assert reason.endswith("it sent a message of more than 1000000 bytes")


async def test_a_list_of_tools_that_does_not_end_is_given_up() -> None:
    """The list of tools has pages, and each page announces another one."""
    assert "its list of tools does not end: 100 parts" in await why_not(odd("2025", cursor="more"))


async def test_a_command_that_does_not_exist_is_named() -> None:
    """A missing command is not retried, because it will still be missing."""
    assert "'no-such-program'" in await why_not(McpServer(["no-such-program"]))


async def test_a_url_that_nobody_serves_is_told() -> None:
    """The error includes the cause of the failed connection."""
    assert "it cannot be reached: " in await why_not(McpServer("http://127.0.0.1:9/mcp"))
