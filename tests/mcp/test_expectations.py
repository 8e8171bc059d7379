"""Expectations of users of langchain-mcp-adapters, and middleware in place of their interceptors."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from callboard import ToolCallRequest, ToolNode
from callboard.testing import tool_call
from callboard_actors.mcp import McpServer

from ._asked import WAIT, answers
from ._served import server

CallNext = Callable[[ToolCallRequest], Awaitable[Any]]


async def through(middleware: Any, *calls: Any) -> list[Any]:
    """Return the answer of a node with this middleware."""
    with anyio.fail_after(WAIT):
        async with McpServer(server()) as served:
            return await answers(ToolNode([served], middleware=[middleware]), *calls)


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


async def test_a_middleware_changes_arguments_and_the_tool() -> None:
    """`request.override(args=...)` and `name=...` of an interceptor are `override(tool_call=...)` here."""

    async def louder(request: ToolCallRequest, call_next: CallNext) -> Any:
        return await call_next(request.override(tool_call={**request.tool_call, "args": {"text": "LOUD"}}))

    [message] = await through(louder, tool_call("echo", "1", text="quiet"))
    assert message.text == "LOUD"


async def test_a_middleware_changes_a_result_or_has_one_of_its_own() -> None:
    """Middleware sees the message for the model; a cache can answer without asking the server."""
    asked: list[str] = []

    async def marked(request: ToolCallRequest, call_next: CallNext) -> Any:
        if request.tool_call["args"].get("text") == "known":
            return ToolMessage("from the cache", tool_call_id=request.tool_call["id"], name="echo")
        asked.append(request.tool_call["name"])
        message = await call_next(request)
        return message.model_copy(update={"content": f"[{message.text}]"})

    known, fresh = await through(marked, tool_call("echo", "1", text="known"), tool_call("echo", "2", text="new"))
    assert (known.text, fresh.text, asked) == ("from the cache", "[new]", ["echo"])


async def test_the_first_middleware_is_the_outermost_and_reads_the_state() -> None:
    """The order is that of interceptors; `request.runtime` and the state are those of every tool."""
    order: list[str] = []

    def named(name: str) -> Any:
        async def one(request: ToolCallRequest, call_next: CallNext) -> Any:
            order.append(f"{name} of {request.state['user']}")
            return await call_next(request)

        return one

    async with McpServer(server()) as served:
        node = ToolNode([served], middleware=[named("outer"), named("inner")])
        await node.ainvoke({"messages": [], "user": "ann", **_asked("echo", text="x")})
    assert order == ["outer of ann", "inner of ann"]


async def test_a_middleware_may_answer_with_a_command() -> None:
    """As with interceptors, a command may end an agent's turn or write to the state of its graph."""

    async def leave(request: ToolCallRequest, call_next: CallNext) -> Any:
        message = await call_next(request)
        return Command(update={"messages": [message], "done": True}, goto="end")

    async with McpServer(server()) as served:
        [command] = await ToolNode([served], middleware=[leave]).ainvoke(_asked("echo", text="bye"))
    assert isinstance(command, Command) and command.goto == "end"
    assert command.update["messages"][0].text == "bye"  # type: ignore[index]


async def test_an_error_of_a_middleware_is_raised() -> None:
    """An error of middleware is a bug, which the model cannot repair."""

    async def broken(request: ToolCallRequest, call_next: CallNext) -> Any:
        raise LookupError("no such tenant")

    with pytest.raises(LookupError, match="no such tenant"):
        await through(broken, tool_call("echo", "1", text="x"))


async def test_tools_of_several_servers_run_side_by_side() -> None:
    """One batch calls two servers, each over its own connection."""
    async with McpServer(server(), prefix="one_") as one, McpServer(server(), name="two", prefix="two_") as two:
        node = ToolNode([one, two])
        calls = [tool_call(f"{where}_remember", where, text="x") for where in ("one", "two")]
        assert [message.text for message in await answers(node, *calls)] == ["1", "1"]


def _asked(name: str, **args: object) -> dict[str, Any]:
    from langchain_core.messages import AIMessage

    return {"messages": [AIMessage("", tool_calls=[tool_call(name, "1", **args)])]}
