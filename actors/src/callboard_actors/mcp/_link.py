"""What is known of a connection besides its messages: whether it is there, and why it is no more."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import anyio
from mcp import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, JSONRPCError, JSONRPCRequest, JSONRPCResponse

from callboard import EngineError
from callboard_actors.mcp._unfit import UnfitTools

_WORDS = ("Connection closed", "SSE stream ")
"""What the SDK says of an end, first."""
_MOST_ASKED = 16
"""Requests of a server that are under way before the next one is read."""
_PAUSE = 0.05
"""Seconds that a message waits for the answers to requests before it."""


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
        asked = _Asked()
        yield _WatchedStream(read, link, asked), _AnswerStream(write, asked)


class _Asked:
    """Requests of a server that the SDK has not answered yet, each of which is a task of the SDK.

    A server may ask faster than it is answered. Nothing more is read of it meanwhile, but for a bounded time: a request
    may wait for a person, or may get no answer because the server has withdrawn it.
    """

    def __init__(self) -> None:
        self._count = 0
        self._has_fallen = anyio.Event()

    async def one_more(self) -> None:
        """Count a request; wait if there are too many."""
        self._count += 1
        if self._count < _MOST_ASKED:
            return
        with anyio.move_on_after(_PAUSE) as pause:
            while self._count >= _MOST_ASKED:
                self._has_fallen = anyio.Event()
                await self._has_fallen.wait()
        if pause.cancelled_caught:
            self._count = 0

    def one_less(self) -> None:
        """Note that a request of the server was answered, and let its stream be read again."""
        if self._count:
            self._count -= 1
            self._has_fallen.set()


class _InPlaceOf:
    """Stream that stands in place of a transport's own, and closes it."""

    _stream: Any

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _AnswerStream(_InPlaceOf):
    """A stream of messages to a server, on which answers are counted."""

    def __init__(self, stream: Any, asked: _Asked) -> None:
        self._stream = stream
        self._asked = asked

    async def send(self, item: Any, /) -> None:
        await self._stream.send(item)
        if isinstance(item.message, (JSONRPCResponse, JSONRPCError)):
            self._asked.one_less()


class _WatchedStream(_InPlaceOf):
    """A stream of messages to read. It stands in place of the transport's own, so that no message takes a detour."""

    def __init__(self, stream: Any, link: Link, asked: _Asked) -> None:
        self._stream = stream
        self._link = link
        self._asked = asked

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
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCRequest):
            await self._asked.one_more()
        return self._link.unfit.sift(message)

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    def __aiter__(self) -> Self:
        return self
