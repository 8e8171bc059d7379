"""`Service`: served object for MCP clients, independent of the transport."""

import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any, Final, cast

from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from mcp import types
from mcp.server import Server

from callboard import Actor, Agent, ChildSpec, Drained, ToolNode
from callboard_actors.mcp import McpServer
from callboard_actors.mcp_service._agent_offer import AgentOffer
from callboard_actors.mcp_service._callers import Context
from callboard_actors.mcp_service._calls import Calls, Offer
from callboard_actors.mcp_service._node_offer import NodeOffer
from callboard_actors.mcp_service._results import with_json_results

# Objects that must be opened first: MCP servers, and functions that yield the object to serve.

Block = Callable[[], AbstractAsyncContextManager[Any]]
"""Function that returns an async context manager of the object to serve."""


def block_of(served: object) -> Block | None:
    """Return a function that opens the object to serve, or `None` if it needs no opening."""
    # Two kinds need it: functions with `@asynccontextmanager`, and MCP servers that are not open yet.
    if inspect.isfunction(served) and inspect.isasyncgenfunction(inspect.unwrap(served)):
        return cast("Block", served)
    listed: list[object] = list(cast("Sequence[object]", served)) if isinstance(served, (list, tuple)) else [served]
    closed = [one for one in listed if isinstance(one, McpServer) and not one.is_open]
    return (lambda: _with_open(closed, listed)) if closed else None


@asynccontextmanager
async def _with_open(closed: Sequence[McpServer], tools: list[object]) -> AsyncGenerator[list[object]]:
    async with AsyncExitStack() as stack:
        for server in closed:
            await stack.enter_async_context(server)
        yield tools


# The service.

PATIENCE: Final = 30.0
"""Default time for calls to finish when the server ends, in seconds."""

Tool = BaseTool | Callable[..., Any] | Actor | ChildSpec[Any] | McpServer
Served = ToolNode | Agent | Sequence[Tool] | Tool | Callable[[], AbstractAsyncContextManager[Any]]
"""Object that can be served."""


class Service:
    """Service of a node, an agent or tools for MCP clients, independent of the transport.

    Raise TypeError for an object that cannot be served. Raise ValueError for tools with arguments that only a graph
    provides, equal tool names, and an empty list of tools.
    """

    def __init__(self, served: Served, *, name: str | None = None, description: str | None = None) -> None:
        self._served = served
        self._name = name
        self._description = description
        self._offer = self._offer_of(served)
        """`None` for an object that must be opened first; it then has a new offer each time."""
        self._calls = Calls(self._offer)

    @property
    def tool_names(self) -> list[str]:
        """Names of the served tools; empty while an object that must be opened is closed."""
        return [tool.name for tool in self._calls.tools()]

    def server(self) -> Server[Any]:
        """Return a new server of the SDK, for one transport."""
        offer = self._calls.offer
        return Server(
            (self._name or _NAME) if offer is None else offer.name,
            version=version("callboard-actors"),
            on_list_tools=self._list_tools,
            on_call_tool=self._calls.answer,
            get_tool_input_schema=self._input_schema,
        )

    async def _list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._calls.tools())

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        return next((tool.input_schema for tool in self._calls.tools() if tool.name == name), None)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Open the served object: calls are possible during the block. Raise its errors, and those of `serve_mcp`."""
        self._calls.reopen()
        async with AsyncExitStack() as stack:
            found, offer = cast("Any", self._served), self._offer
            while offer is None:
                block = block_of(found)
                assert block is not None
                found = await stack.enter_async_context(block())
                offer = self._offer_of(found)
            await stack.enter_async_context(offer.opens)
            self._calls.offer = offer
            try:
                yield
            finally:
                self._calls.offer = self._offer

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Ask no more questions, refuse new calls, and wait for running calls; `timeout` is in seconds."""
        # Questions first: an answer that arrives during the drain could not continue its call.
        await self._calls.close()
        offer = self._calls.offer
        return Drained() if offer is None else await offer.supervised.drain(timeout)

    def _offer_of(self, served: Served) -> Offer | None:
        """Return the offer of an object, or `None` if it must be opened first."""
        if isinstance(served, Agent):
            return AgentOffer(served, name=self._name or served.name, description=self._description)
        block = block_of(served)
        if self._description is not None and block is not served:
            raise ValueError("description=... is for an agent, which is one tool; tools have descriptions of their own")
        if block is not None:
            if block is not served:
                _tools(served)  # raises for an object that is no tool, before anything is opened
            return None
        if isinstance(served, ToolNode):
            node, promises_schemas = served, False
        else:
            node, promises_schemas = ToolNode(_tools(served), handle_tool_errors=True), True
        if not node.tools_by_name:
            raise ValueError("there is nothing to serve: it has no tools")
        return NodeOffer(node, name=self._name or _NAME, promises_schemas=promises_schemas)


_NAME: Final = "callboard"


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
