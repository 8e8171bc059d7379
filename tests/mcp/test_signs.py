"""Progress, logs, traces and keys that a call exchanges with its server besides arguments and results."""

import json
import logging
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider

from callboard import CallEvent, CallPolicy, ToolNode, observe
from callboard.telemetry import Tracing
from callboard.testing import tool_call
from callboard_actors.mcp import McpServer

from ._asked import answers
from ._served import server


async def test_progress_of_the_server_is_that_of_the_call() -> None:
    """Observers of the call see the progress as if its code ran locally."""
    seen: list[CallEvent] = []
    with observe(seen.append):
        async with McpServer(server()) as served:
            await answers(ToolNode([served]), tool_call("count", "1", to=3))
    told = [event for event in seen if event.what == "progress"]
    assert told
    assert (told[-1].facts["done"], told[-1].facts["total"]) == (3, 3)


async def test_progress_of_the_server_keeps_a_call_alive() -> None:
    """Progress reports reset the idle timeout; a call without them times out."""
    policies = {name: CallPolicy(idle_timeout=2) for name in ("count", "hang")}
    async with McpServer(server()) as served:
        node = ToolNode([served], policies=policies)
        slow, silent = await answers(
            node, tool_call("count", "1", to=5, every=1.5), tool_call("hang", "2", folder="/nowhere")
        )
    assert slow.text == "counted to 5"
    assert silent.status == "error"


async def test_what_a_server_logs_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Log messages have their own logger, with the server's name."""
    caplog.set_level(logging.INFO, "callboard.mcp")
    async with McpServer(server(), name="shop", log_level="info") as served:
        await served.call("log", {"text": "the tea is ready"})
    assert ("callboard.mcp", logging.WARNING, "shop: the tea is ready") in caplog.record_tuples


async def test_a_server_goes_on_with_the_trace_of_the_call() -> None:
    """The trace context is sent in `_meta` by the names of W3C."""
    provider = TracerProvider(shutdown_on_exit=False)
    with Tracing(provider).on():
        async with McpServer(server()) as served:
            [message] = await answers(ToolNode([served]), tool_call("meta", "1"))
    assert "traceparent" in message.text


async def test_a_server_knows_a_call_again_by_its_key() -> None:
    """Different calls have different keys, and a call that no model requested has none."""
    async with McpServer(server()) as served:
        calls = [tool_call("meta", "1"), tool_call("meta", "2")]
        node = ToolNode([served])
        one, other = await answers(node, *calls)
        alone: Any = await served.call("meta")
    keys = [json.loads(message.text)["callboard/idempotency-key"] for message in (one, other)]
    assert keys[0] != keys[1]
    assert "callboard/idempotency-key" not in alone.content[0].text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_that_the_server_learns_are_there(mode: str) -> None:
    """When the server announces a change, its tools are listed again automatically."""
    async with McpServer(server(), mode=mode) as served:
        await anyio.wait_all_tasks_blocked()
        await served.call("learn", {"name": "say"})
        while "say" not in [tool.name for tool in served.tools]:
            await anyio.sleep(0.01)
        result: Any = await served.call("say")
    assert result.content[0].text == "said"
