"""Cost of an MCP tool call through callboard's actor, compared with the plain SDK."""

import statistics
import sys
from collections.abc import Awaitable, Callable

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from sniffio import current_async_library

from callboard import ToolNode, tool_call
from callboard_actors.mcp import McpServer

from ._measure import BACKENDS, WALL, Table

SERVER = [sys.executable, "-m", "tests.mcp._served", "stdio"]
_BARE = "SDK's session alone"
_OURS = "`McpServer.call`"
_NODE = "a tool of it in a `ToolNode`"
_TOOL = "a tool of it by itself, as LangChain runs it"


def mcp(*, calls: int) -> Table:
    """Measure sequential calls over stdio, as p50 in microseconds. The contestants alternate call by call."""
    table = Table("MCP", ["", *BACKENDS])
    rounds = [anyio.run(_medians, calls, backend=backend) for backend in BACKENDS]
    for name in rounds[0]:
        table.add(f"{name}, us", *(medians[name] * 1e6 if name in medians else None for medians in rounds))
    ratios = [medians[_OURS] / medians[_BARE] for medians in rounds]
    table.add(f"{_OURS} : {_BARE}", *ratios)
    table.promise("a call through the actor to one of the SDK", 1.1, ratios)
    return table


async def _medians(calls: int) -> dict[str, float]:
    async with Client(StdioServerParameters(command=SERVER[0], args=SERVER[1:])) as bare, McpServer(SERVER) as server:
        await bare.list_tools()  # otherwise the SDK lists the tools during the first call
        node, [echo] = ToolNode([server]), [tool for tool in server.tools if tool.name == "echo"]
        arguments = {"text": "hello"}
        contestants: dict[str, Callable[[], Awaitable[object]]] = {
            _BARE: lambda: bare.session.call_tool("echo", arguments),
            _OURS: lambda: server.call("echo", arguments),
            _NODE: lambda: node.ainvoke([tool_call("echo", "1", text="hello")]),
        }
        if current_async_library() == "asyncio":  # LangChain runs a tool directly on asyncio only
            contestants[_TOOL] = lambda: echo.ainvoke(arguments)
        return await _in_turns(calls, contestants)


async def _in_turns(calls: int, contestants: dict[str, Callable[[], Awaitable[object]]]) -> dict[str, float]:
    durations: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(calls + 5):
        for name, call in contestants.items():
            began = WALL()
            await call()
            durations[name].append(WALL() - began)
    return {name: statistics.median(values[5:]) for name, values in durations.items()}
