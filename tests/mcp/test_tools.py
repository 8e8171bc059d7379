"""The tools of an MCP server as tools of a node, with a fast server in this process, and signs beside the results."""

import json
from typing import Any

import anyio
import pytest
from langchain_core.tools import BaseTool
from mcp_types import CallToolResult, TextContent, Tool
from opentelemetry.sdk.trace import TracerProvider

from callboard import CallEvent, CallPolicy, ChildSpec, ToolNode, child, observe, tool_call
from callboard.telemetry import Tracing
from callboard.testing import ActorContract
from callboard_actors.mcp import McpServer
from callboard_actors.mcp._connection import Catalog, Connection, Plan, SdkTarget, Sending, Target, target_of
from callboard_actors.mcp._tools import as_langchain_tool

from ._asked import NEW, ROOT, WAIT, answers
from ._served import server


def test_a_server_that_is_not_open_is_refused_by_a_node() -> None:
    """The tools are unknown before the server is open, and a model without tools would be a silent mistake."""
    with pytest.raises(RuntimeError, match=r"McpServer\('served'\) is not open.*async with"):
        ToolNode([McpServer(server())])


@pytest.mark.parametrize(("allow", "deny"), [(["echo", "count"], []), (["echo", "count", "hang"], ["hang"])])
async def test_only_those_are_there_that_are_wanted(allow: list[str], deny: list[str]) -> None:
    """The model does not see other tools and cannot call them."""
    async with McpServer(server(), allow=allow, deny=deny) as served:
        assert {tool.name for tool in served.tools} == {"echo", "count"}


@pytest.mark.parametrize("option", ["allow", "deny"])
async def test_a_name_that_no_tool_has_is_refused_with_the_one_that_was_meant(option: str) -> None:
    """A misspelt name in `deny` would allow the tool."""
    options: dict[str, Any] = {option: ["ecko"]}
    with pytest.raises(ValueError, match=rf"{option}=.*'ecko'.*did you mean 'echo'\?"):
        await McpServer(server(), **options).__aenter__()


async def test_a_tool_that_disappeared_answers_with_what_there_is() -> None:
    """The model still knows the removed tool and has to learn that it is gone."""
    async with McpServer(server()) as served:
        node = ToolNode([served])
        await answers(node, tool_call("forget", "1", name="count"))
        await served.list_tools()
        [message] = await answers(node, tool_call("count", "2", to=3))
    assert message.status == "error"
    assert "Not started: the MCP server 'served' has no tool 'count'" in message.text


async def test_the_block_is_entered_once_at_a_time_and_again_later() -> None:
    """A second connection would belong to no block."""
    served = McpServer(server())
    for _ in range(2):
        async with served:
            assert (await served.call("echo", {"text": "x"})).is_error is False
            with pytest.raises(RuntimeError, match="open already"):
                await served.__aenter__()
    with pytest.raises(RuntimeError, match="not open"):
        await served.call("echo", {"text": "x"})


def echo_tool(*names: str) -> BaseTool:
    """A server's tool that answers with the arguments it was called with."""

    async def call(_: str, arguments: dict[str, Any]) -> tuple[CallToolResult, str]:
        return CallToolResult(content=[TextContent(text=repr(sorted(arguments.items())))]), ""

    schema: Any = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return as_langchain_tool(Tool(name="set", input_schema=schema), prefix="", call=call)


@pytest.mark.parametrize("name", ["config", "run_manager", "self", "callbacks", "state", "args", "tool_call_id"])
async def test_arguments_have_any_names(name: str, anyio_backend_name: str) -> None:
    """An argument named `config` would otherwise be dropped silently, by a node or by LangChain itself."""
    tool, call = echo_tool(name), tool_call("set", "1", **{name: "v"})
    [message] = await answers(ToolNode([tool]), call)
    assert message.text == repr([(name, "v")])
    if anyio_backend_name == "asyncio":
        assert (await tool.ainvoke(call)).text == message.text


# Expectations of users of langchain-mcp-adapters, and middleware in place of their interceptors.


async def test_a_tool_has_the_name_the_words_and_the_schema_of_the_server() -> None:
    """The model reads the server's own schema, not one that was derived from it."""
    async with McpServer(server()) as served:
        [described] = [tool for tool in await served.list_tools() if tool.name == "echo"]
        [echo] = [tool for tool in served.tools if tool.name == "echo"]

    assert (echo.name, echo.description) == ("echo", "Say what was said.")
    assert isinstance(echo.args_schema, dict)
    assert echo.args_schema["properties"] == described.input_schema["properties"]
    assert echo.args_schema["required"] == ["text"]
    assert echo.args["text"]["description"] == "What to say."


# Progress, traces and keys that a call exchanges with its server besides arguments and results.


async def test_progress_of_the_server_is_that_of_the_call() -> None:
    """Observers of the call see the progress as if its code ran locally."""
    events: list[CallEvent] = []
    with observe(events.append):
        async with McpServer(server()) as served:
            await answers(ToolNode([served]), tool_call("count", "1", to=3))
    progress_events = [event for event in events if event.note == "progress"]
    assert progress_events
    assert (progress_events[-1].facts["done"], progress_events[-1].facts["total"]) == (3, 3)


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
        first, second = await answers(node, *calls)
        alone: Any = await served.call("meta")
    keys = [json.loads(message.text)["callboard/idempotency-key"] for message in (first, second)]
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


# The actor behind a server passes the contract tests for actors.


class _Contract(ActorContract):
    patience = WAIT

    def target(self) -> Target:
        raise NotImplementedError

    def actor(self) -> ChildSpec[Connection]:
        plan = Plan(name="shop", target=self.target(), mode="auto")
        return child(Connection(plan, Catalog()))

    async def ask(self, reference: Connection) -> object:
        return (await reference.call("echo", {"text": "x"}, Sending())).result

    def test_its_handlers_are_tools(self) -> None:
        """The handlers of the actor are internal: only the tools of the server become tools."""


class TestConnectionInThisProcess(_Contract):
    """Contract tests on a server in this process; each connection has its own server."""

    def target(self) -> Target:
        return SdkTarget(server())


@pytest.mark.real_clock
class TestConnectionToACommand(_Contract):
    """Contract tests on a process that is started for each connection."""

    def target(self) -> Target:
        return target_of(NEW, cwd=ROOT)
