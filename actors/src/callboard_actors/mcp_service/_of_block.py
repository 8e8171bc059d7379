"""What is there only while a block is: MCP servers, whose tools nobody knows before, and what a function opens."""

import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, cast

from mcp import types

from callboard import Drained
from callboard_actors.mcp import McpServer
from callboard_actors.mcp_service._callers import Caller
from callboard_actors.mcp_service._work import Offer, Work

Block = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens what is served, and closes it again."""


class BlockOffer:
    """What is served while a block is.

    Args:
        block: makes the block; anew each time that it is opened.
        offer: makes an offer of what the block has.
        name: of the server, until it is open.
    """

    def __init__(self, block: Block, offer: Callable[[Any], Offer], *, name: str) -> None:
        self._block = block
        self._offer = offer
        self._name = name
        self._open: Offer | None = None

    @property
    def name(self) -> str:
        """What clients are told that the server is."""
        return self._name if self._open is None else self._open.name

    def tools(self) -> list[types.Tool]:
        """The tools, while it is open."""
        return [] if self._open is None else self._open.tools()

    def begin(self, name: str, arguments: dict[str, Any], caller: Caller) -> Work | None:
        """A call, while it is open."""
        return None if self._open is None else self._open.begin(name, arguments, caller)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """A block in which it can be called; raises what opening it raises, and as `serve_mcp` does."""
        async with self._block() as served:
            offer = self._offer(served)
            async with offer.opened():
                self._open = offer
                try:
                    yield
                finally:
                    self._open = None

    async def drain(self, timeout: float) -> Drained:
        """Drain what is open."""
        return Drained() if self._open is None else await self._open.drain(timeout)


def block_of(served: object) -> Block | None:
    """What has to be opened before anything of it can be served: a function with `@asynccontextmanager`, or tools with
    MCP servers among them that nobody has opened; `None` if there is nothing to open.
    """
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
