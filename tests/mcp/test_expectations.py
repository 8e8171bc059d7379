"""Expectations of users of langchain-mcp-adapters, and middleware in place of their interceptors."""

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.messages import ToolMessage

from callboard import ToolCallRequest, ToolNode
from callboard.testing import tool_call
from callboard_actors.mcp import McpServer

from ._asked import answers
from ._served import server

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


async def test_calls_share_a_session_by_default() -> None:
    """The adapters open a session for each call by default and so lose what the server remembers."""
    async with McpServer(server()) as served:
        node = ToolNode([served])
        texts = [(await answers(node, tool_call("remember", f"{n}", text="x")))[0].text for n in range(3)]
    assert texts == ["1", "2", "3"]


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


async def test_tools_of_several_servers_run_side_by_side() -> None:
    """One batch calls two servers, each over its own connection."""
    async with McpServer(server(), prefix="one_") as one, McpServer(server(), name="two", prefix="two_") as two:
        node = ToolNode([one, two])
        calls = [tool_call(f"{where}_remember", where, text="x") for where in ("one", "two")]
        assert [message.text for message in await answers(node, *calls)] == ["1", "1"]
