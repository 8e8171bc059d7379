"""Calls of a server in its own process: concurrency, timeouts and cancellation."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from callboard import CallPolicy, ToolNode, tool_call
from callboard_actors.mcp import McpBounds, McpServer

from ._asked import NEW, OLD, ROOT, answers, appears, every_era, over_http, serve_module

pytestmark = pytest.mark.real_clock


async def test_servers_of_two_eras_answer_in_one_node() -> None:
    """Users do not have to know which version of the protocol a server speaks."""
    async with McpServer(NEW, cwd=ROOT, prefix="new_") as new, McpServer(OLD, cwd=ROOT, prefix="old_") as old:
        messages = await answers(
            ToolNode([new, old]), tool_call("new_echo", "1", text="new"), tool_call("old_echo", "2", text="old")
        )
    assert [message.text for message in messages] == ["new", "old"]


@every_era
async def test_the_timeout_of_a_policy_reaches_the_server(command: list[str], tmp_path: Path) -> None:
    """After a timeout the model gets an error and the server stops working on the call."""
    async with McpServer(command, cwd=ROOT) as server:
        node = ToolNode([server], policies={"hang": CallPolicy(timeout=0.3)})
        [message] = await answers(node, tool_call("hang", "1", text=str(tmp_path)))
        await appears(tmp_path / "cancelled")
    assert "did not finish within its timeout of 0.3 s" in message.text


async def test_long_arguments_end_their_call_before_anything_is_sent() -> None:
    """The SDK writes a message in one go, for which the event loop waits; a list of numbers takes as long as a text."""
    async with McpServer(NEW, cwd=ROOT, bounds=McpBounds(max_arguments=10_000)) as server:
        long, many, short = await answers(
            ToolNode([server]),
            tool_call("echo", "1", text="x" * 10_000),
            tool_call("echo", "2", text=[1] * 1_000),
            tool_call("echo", "3", text="x" * 9_000),
        )
    for message in (long, many):
        assert "Not started: the arguments of 'echo' have more than 10000 characters" in message.text
        assert "McpBounds(max_arguments=...) allows more" in message.text
    assert short.text == "x" * 9_000


@pytest.fixture(scope="module")
def sdk_server() -> Iterator[str]:
    """Run the SDK's server over HTTP; yield its URL."""
    with serve_module("_served", "http") as url:
        yield url


@pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning")  # the SDK leaves streams open
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_over_http_the_same_is_true_of_either_era(sdk_server: str, mode: str, tmp_path: Path) -> None:
    """User headers are sent. A cancel closes the request in one version and is a message in the other."""
    async with McpServer(sdk_server, headers={"x-user": "ann"}, mode=mode) as server:
        assert (await server.call("header", {"name": "x-user"})).structured_content == {"result": "ann"}
        async with anyio.create_task_group() as group:
            group.start_soon(server.call, "hang", {"folder": str(tmp_path)})
            await appears(tmp_path / "began")
            group.cancel_scope.cancel()
        await appears(tmp_path / "cancelled")


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_an_error_of_the_server_is_the_end_of_one_call_whatever_its_code(era: str, transport: str) -> None:
    """Servers use -32000 for any error, the SDK for a closed connection. Other calls must not end as unknown."""
    async with AsyncExitStack() as stack:
        command = {"2025": OLD, "2026": NEW}[era]
        target = command if transport == "stdio" else await stack.enter_async_context(over_http("_plain_http", era))
        server = await stack.enter_async_context(McpServer(target, cwd=ROOT if transport == "stdio" else None))
        await server.call("remember", {"text": "x"})
        refused, note = await answers(
            ToolNode([server]), tool_call("refuse", "1", text="Rate limited"), tool_call("remember", "2", text="y")
        )
    assert (refused.status, refused.text) == ("error", "The server refused the call of 'refuse': Rate limited")
    assert note.text == "2"
