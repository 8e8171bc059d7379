"""`Service`: served object for MCP clients, independent of the transport."""

import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
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
from callboard_actors.mcp_service._callers import Caller, Context
from callboard_actors.mcp_service._calls import Calls
from callboard_actors.mcp_service._dialogue import ServedCall, ServedObject
from callboard_actors.mcp_service._node_offer import NodeOffer
from callboard_actors.mcp_service._results import with_json_results

# Offers of objects that must be opened first: MCP servers, and functions that yield the object to serve.

Block = Callable[[], AbstractAsyncContextManager[Any]]
"""Function that returns an async context manager of the object to serve."""


class BlockOffer:
    """Offer that exists only while its block is open.

    Args:
        block: makes a new context manager each time that the offer is opened.
        offer: makes an offer of the object that the block yields.
        name: name of the server until the block is open.
    """

    def __init__(self, block: Block, offer: Callable[[Any], ServedObject], *, name: str) -> None:
        self._block = block
        self._offer = offer
        self._name = name
        self._open: ServedObject | None = None

    @property
    def name(self) -> str:
        """Name of the server for clients."""
        return self._name if self._open is None else self._open.name

    def tools(self) -> list[types.Tool]:
        """Return the tools; empty while the block is closed."""
        return [] if self._open is None else self._open.tools()

    def begin(self, name: str, arguments: dict[str, Any], caller: Caller) -> ServedCall | None:
        """Return a call that has not begun; `None` while the block is closed."""
        return None if self._open is None else self._open.begin(name, arguments, caller)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Open the block and its offer; raise the errors of the block, and those of `serve_mcp`."""
        async with self._block() as served:
            offer = self._offer(served)
            async with offer.opened():
                self._open = offer
                try:
                    yield
                finally:
                    self._open = None

    async def drain(self, timeout: float) -> Drained:
        """Drain the open offer, if any."""
        return Drained() if self._open is None else await self._open.drain(timeout)


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
