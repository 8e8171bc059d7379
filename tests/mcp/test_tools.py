"""The tools of an MCP server as tools of a node, with a fast server in this process."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from mcp_types import CallToolResult, TextContent, Tool

from callboard import ToolCallRequest, ToolNode, create_react_agent
from callboard.testing import ScriptedModel, tool_call
from callboard_actors.mcp import McpServer
from callboard_actors.mcp._tools import as_langchain_tool

from ._asked import answers
from ._served import server


@pytest.mark.real_clock
async def test_an_agent_is_given_a_server_like_a_tool() -> None:
    """The agent's model gets the tools and calls them."""
    model = ScriptedModel([[tool_call("echo", "1", text="hello")], "done"])
    async with McpServer(server()) as served:
        found = await create_react_agent(model, [served]).ainvoke({"messages": [("user", "say hello")]})
    assert [message.text for message in found["messages"][2:]] == ["hello", "done"]


def test_a_server_that_is_not_open_is_refused_by_a_node() -> None:
    """The tools are unknown before the server is open, and a model without tools would be a silent mistake."""
    with pytest.raises(RuntimeError, match=r"McpServer\('served'\) is not open.*async with"):
        ToolNode([McpServer(server())])


@pytest.mark.parametrize(("allow", "deny"), [(["echo", "count"], []), (["echo", "count", "log"], ["log"])])
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


def told_back(*names: str) -> BaseTool:
    """A server's tool that answers with the arguments it was called with."""

    async def call(_: str, arguments: dict[str, Any]) -> tuple[CallToolResult, str]:
        return CallToolResult(content=[TextContent(text=repr(sorted(arguments.items())))]), ""

    schema: Any = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return as_langchain_tool(Tool(name="set", input_schema=schema), prefix="", call=call)


@pytest.mark.parametrize("name", ["config", "run_manager", "self", "callbacks", "state", "args", "tool_call_id"])
async def test_arguments_have_any_names(name: str, anyio_backend_name: str) -> None:
    """An argument named `config` would otherwise be dropped silently, by a node or by LangChain itself."""
    tool, call = told_back(name), tool_call("set", "1", **{name: "v"})
    [message] = await answers(ToolNode([tool]), call)
    assert message.text == repr([(name, "v")])
    if anyio_backend_name == "asyncio":
        assert (await tool.ainvoke(call)).text == message.text


# Expectations of users of langchain-mcp-adapters, and middleware in place of their interceptors.

CallNext = Callable[[ToolCallRequest], Awaitable[Any]]


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


async def test_a_middleware_changes_arguments_and_results_or_answers_itself() -> None:
    """`request.override(args=...)` of an interceptor is `override(tool_call=...)` here; a cache asks no server."""
    asked: list[str] = []

    async def marked(request: ToolCallRequest, call_next: CallNext) -> Any:
        if request.tool_call["args"].get("text") == "known":
            return ToolMessage("from the cache", tool_call_id=request.tool_call["id"], name="echo")
        asked.append(request.tool_call["name"])
        message = await call_next(request.override(tool_call={**request.tool_call, "args": {"text": "LOUD"}}))
        return message.model_copy(update={"content": f"[{message.text}]"})

    async with McpServer(server()) as served:
        calls = tool_call("echo", "1", text="known"), tool_call("echo", "2", text="quiet")
        known, fresh = await answers(ToolNode([served], middleware=[marked]), *calls)
    assert (known.text, fresh.text, asked) == ("from the cache", "[LOUD]", ["echo"])
