"""Service behind any transport: the server of the SDK, and the conversion of the user's object to an offer."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, Final, cast

from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from mcp import types
from mcp.server import Server

from callboard import Actor, Agent, ChildSpec, Drained, ToolNode
from callboard_actors.mcp import McpServer
from callboard_actors.mcp_service._agent_offer import AgentOffer
from callboard_actors.mcp_service._block_offer import BlockOffer, block_of
from callboard_actors.mcp_service._callers import Context
from callboard_actors.mcp_service._calls import Calls
from callboard_actors.mcp_service._node_offer import NodeOffer
from callboard_actors.mcp_service._served import ServedObject
from callboard_actors.mcp_service._typed_results import with_json_results

PATIENCE: Final = 30.0
"""Default time for calls to finish when the server ends, in seconds."""

Tool = BaseTool | Callable[..., Any] | Actor | ChildSpec[Any] | McpServer
Served = ToolNode | Agent | Sequence[Tool] | Tool | Callable[[], AbstractAsyncContextManager[Any]]
"""Object that can be served."""


class Service:
    """Service of a node, an agent or tools for MCP clients, independent of the transport.

    Args:
        served: a node, an agent, or tools; or a function that opens one of these.
        name: name of the server, for its clients.
        description: description of an agent, for the models of its clients.

    Raises:
        TypeError: for an object that cannot be served.
        ValueError: for tools with arguments that only a graph provides, equal tool names, and an empty list of tools.
    """

    def __init__(self, served: Served, *, name: str | None, description: str | None) -> None:
        self._offer = _offer(served, name, description)
        self._calls = Calls(self._offer)

    @property
    def tool_names(self) -> list[str]:
        """Names of the served tools."""
        return [tool.name for tool in self._offer.tools()]

    def server(self) -> Server[Any]:
        """Return a new server of the SDK, for one transport."""
        return Server(
            self._offer.name,
            version=version("callboard-actors"),
            on_list_tools=self._list_tools,
            on_call_tool=self._calls.answer,
            get_tool_input_schema=lambda name: self._schemas().get(name),
        )

    async def _list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._offer.tools())

    def _schemas(self) -> dict[str, dict[str, Any]]:
        return {tool.name: tool.input_schema for tool in self._offer.tools()}

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Open the offer: calls are possible during the block."""
        self._calls.reopen()
        async with self._offer.opened():
            yield

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Ask no more questions, refuse new calls, and wait for running calls; `timeout` is in seconds."""
        # Questions first: an answer that arrives during the drain could not continue its call.
        await self._calls.close()
        return await self._offer.drain(timeout)


_NAME: Final = "callboard"


def _offer(served: Served, name: str | None, description: str | None) -> ServedObject:
    if isinstance(served, Agent):
        return AgentOffer(served, name=name or served.name, description=description)
    block = block_of(served)
    if description is not None and block is not served:
        raise ValueError("description=... is for an agent, which is one tool; tools have descriptions of their own")
    if block is not None:
        if block is not served:
            _tools(served)  # raises for an object that is no tool, before anything is opened
        return BlockOffer(block, partial(_offer, name=name, description=description), name=name or _NAME)
    if isinstance(served, ToolNode):
        node, promises_schemas = served, False
    else:
        node, promises_schemas = ToolNode(_tools(served), handle_tool_errors=True), True
    if not node.tools_by_name:
        raise ValueError("there is nothing to serve: it has no tools")
    return NodeOffer(node, name=name or _NAME, promises_schemas=promises_schemas)


def _tools(served: object) -> list[Any]:
    found = served if isinstance(served, (list, tuple)) else [served]
    return [_tool(one) for one in cast("Sequence[object]", found)]


def _tool(one: object) -> object:
    """Return an object that `ToolNode` accepts; actors and MCP servers are accepted as they are."""
    if isinstance(one, (Actor, ChildSpec, McpServer)):
        return one
    if isinstance(one, BaseTool):
        return with_json_results(one)
    if callable(one) and not isinstance(one, type):
        return with_json_results(as_tool(one))
    raise TypeError(
        f"an MCP server serves a ToolNode, an agent of create_react_agent, tools or functions; got {one!r:.200}"
    )
