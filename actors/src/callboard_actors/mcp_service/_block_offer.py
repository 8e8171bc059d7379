"""Offers of objects that must be opened first: MCP servers, and functions that yield the object to serve."""

import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, cast

from mcp import types

from callboard import Drained
from callboard_actors.mcp import McpServer
from callboard_actors.mcp_service._callers import Caller
from callboard_actors.mcp_service._served import ServedCall, ServedObject

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
