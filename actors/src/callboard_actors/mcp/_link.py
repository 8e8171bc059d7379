"""What is known of a connection besides its messages: whether it is there, and why it is no more."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import anyio
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED

from callboard import EngineError
from callboard_actors.mcp._unfit import UnfitTools

_WORDS = ("Connection closed", "SSE stream ")
"""What the SDK says of an end, first."""


class ConnectionLostError(EngineError):
    """A connection to a server has ended; what its actor dies of."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, None, reason, ended="unknown")


class Link:
    """Whether a connection is there. The first reason why it is lost is the one that is told."""

    def __init__(self) -> None:
        self._lost = anyio.Event()
        self.reason = ""
        """Why it is lost, in words that follow "because"."""
        self.remarks: Callable[[], str] = str
        """What the server has said besides messages, to follow the reason."""
        self.unfit = UnfitTools()
        """Which tools of the server were left out of its lists."""

    @property
    def is_lost(self) -> bool:
        """Whether nothing comes over it any more."""
        return self._lost.is_set()

    def lose(self, reason: str) -> None:
        """Say that it is lost."""
        if not self.is_lost:
            self.reason = reason + self.remarks()
            self._lost.set()

    async def until_lost(self) -> None:
        """Wait until it is lost."""
        await self._lost.wait()


def is_end(error: MCPError, link: Link) -> bool:
    """Whether a request failed because nothing comes any more.

    Servers answer with the same code, which is JSON-RPC's for anything; that is an error of one call.
    """
    return error.code == CONNECTION_CLOSED and (link.is_lost or error.message.startswith(_WORDS))


@asynccontextmanager
async def watched(transport: AbstractAsyncContextManager[Any], link: Link) -> AsyncGenerator[Any]:
    """A transport of the SDK whose end is told to a link, before the session hears of it."""
    async with transport as (read, write):
        yield _WatchedStream(read, link), write


class _WatchedStream:
    """A stream of messages to read. It stands in place of the transport's own, so that no message takes a detour."""

    def __init__(self, stream: Any, link: Link) -> None:
        self._stream = stream
        self._link = link

    @property
    def last_context(self) -> Any:
        """The variables of whoever sent the last message, where the transport knows them."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        try:
            message = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._link.lose("the connection was closed")
            raise
        self._link.unfit.sift(message)
        return message

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    def __aiter__(self) -> Self:
        return self

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
