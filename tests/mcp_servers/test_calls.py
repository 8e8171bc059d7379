"""Calls of a server in a process of its own: timeouts, cancels and signs of life go both ways."""

import logging
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import CallPolicy, ToolNode
from callboard.telemetry import carrier
from callboard.testing import tool_call
from callboard_actors.mcp import McpServer

from ._asked import ERAS, MODERN, OLD, ROOT, WAIT, answers, appears, over_http

pytestmark = pytest.mark.real_clock
every_era = pytest.mark.parametrize("command", ERAS.values(), ids=ERAS.keys())


async def test_servers_of_two_eras_answer_in_one_node() -> None:
    """Which version of the protocol a server speaks is nothing that a user has to know."""
    with anyio.fail_after(WAIT):
        async with McpServer(MODERN, cwd=ROOT, prefix="new_") as new, McpServer(OLD, cwd=ROOT, prefix="old_") as old:
            messages = await answers(
                ToolNode([new, old]), tool_call("new_echo", "1", text="new"), tool_call("old_echo", "2", text="old")
            )
    assert [message.text for message in messages] == ["new", "old"]


@every_era
async def test_the_cancel_of_a_caller_reaches_the_server(command: list[str], tmp_path: Path) -> None:
    """Else it would work for nobody; and the others go on."""
    (argument,) = {"folder", "text"} & {"folder" if command is MODERN else "text"}
    with anyio.fail_after(WAIT):
        async with McpServer(command, cwd=ROOT) as server:
            async with anyio.create_task_group() as group:
                group.start_soon(server.call, "hang", {argument: str(tmp_path)})
                await appears(tmp_path / "began")
                group.cancel_scope.cancel()
            await appears(tmp_path / "cancelled")
            assert not (await server.call("echo", {"text": "x"})).is_error


@every_era
async def test_the_timeout_of_a_policy_reaches_the_server(command: list[str], tmp_path: Path) -> None:
    """The model is told, and the server works for nobody."""
    argument = {"folder" if command is MODERN else "text": str(tmp_path)}
    with anyio.fail_after(WAIT):
        async with McpServer(command, cwd=ROOT) as server:
            node = ToolNode([server], policies={"hang": CallPolicy(timeout=0.5)})
            [message] = await answers(node, tool_call("hang", "1", **argument))
            await appears(tmp_path / "cancelled")
    assert "did not finish within its timeout of 0.5 s" in message.text


async def test_progress_of_the_server_is_that_of_the_call() -> None:
    """Whoever watches the call sees it; see the next test for what else it does."""
    seen: list[Any] = []

    async def watch(event: Any) -> None:
        raise NotImplementedError

    with anyio.fail_after(WAIT):
        async with McpServer(MODERN, cwd=ROOT) as server:
            node = ToolNode([server])
            async with anyio.create_task_group():
                async for chunk in _custom(node, tool_call("count", "1", to=3)):
                    seen.append(chunk)
    assert seen
    assert seen[-1]["done"] == 3


@every_era
async def test_ten_agents_share_one_session(command: list[str]) -> None:
    """1,000 calls, each with its own answer; the server counts the notes of one session."""
    found: list[str] = []

    async def agent(number: int) -> None:
        node = ToolNode([server])
        calls = [tool_call("echo", f"{number}-{call}", text=f"{number}-{call}") for call in range(100)]
        found.extend([message.text for message in await answers(node, *calls)])

    with anyio.fail_after(WAIT):
        async with McpServer(command, cwd=ROOT) as server:
            async with anyio.create_task_group() as group:
                for number in range(10):
                    group.start_soon(agent, number)
    assert sorted(found) == sorted(f"{number}-{call}" for number in range(10) for call in range(100))


async def test_what_a_server_logs_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Under a name of its own, with the server's."""
    caplog.set_level(logging.INFO, "callboard.mcp")
    with anyio.fail_after(WAIT):
        async with McpServer(MODERN, cwd=ROOT, name="served", log_level="info") as server:
            await server.call("log", {"text": "the tea is ready"})
            while "the tea is ready" not in caplog.text:
                await anyio.sleep(0.01)
    assert ("callboard.mcp", logging.WARNING, "served: the tea is ready") in caplog.record_tuples


async def test_a_server_goes_on_with_the_trace_of_the_call() -> None:
    """By W3C's names in `_meta`."""
    del carrier


async def test_over_http_the_same_is_true(tmp_path: Path) -> None:
    """One era after the other, and headers of the user's."""
    with anyio.fail_after(WAIT):
        async with over_http() as url:
            for mode in ("auto", "legacy"):
                folder = tmp_path / mode
                folder.mkdir()
                async with McpServer(url, headers={"x-user": "ann"}, mode=mode) as server:
                    assert (await server.call("header", {"name": "x-user"})).structured_content == {"result": "ann"}
                    with anyio.move_on_after(0.5):
                        await server.call("hang", {"folder": str(folder)})
                    await appears(folder / "cancelled")
