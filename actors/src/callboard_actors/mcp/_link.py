"""State of a connection: whether it works, and the reason if it is lost."""

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
"""Beginnings of the SDK's messages about a closed connection."""
_MOST_ASKED = 16
"""Unanswered requests of a server from which on reading pauses."""
_PAUSE = 0.05
"""Maximum seconds of such a pause, per message."""


class ConnectionLostError(EngineError):
    """Raised in the connection's actor when the connection ends; the actor fails with it."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, None, reason, ended="unknown")


class Link:
    """State of a connection. The first reason of its loss is kept; later errors are only consequences."""

    def __init__(self) -> None:
        self._lost = anyio.Event()
        self.reason = ""
        """Reason of the loss, as words that follow "because"."""
        self.remarks: Callable[[], str] = str
        """Returns other output of the server, which is added to the reason."""
        self.unfit = UnfitTools()
        """Tools that were left out of the server's lists, with reasons."""

    @property
    def is_lost(self) -> bool:
        """`True` once nothing more can be received."""
        return self._lost.is_set()

    def lose(self, reason: str) -> None:
        """Mark the connection as lost; only the first call has an effect."""
        if not self.is_lost:
            self.reason = reason + self.remarks()
            self._lost.set()

    async def until_lost(self) -> None:
        """Wait until the connection is lost."""
        await self._lost.wait()


def is_end(error: MCPError, link: Link) -> bool:
    """Return whether a request failed because the connection ended.

    The code alone does not tell: servers also use it, as JSON-RPC's general error code, for errors of one call.
    """
    return error.code == CONNECTION_CLOSED and (link.is_lost or error.message.startswith(_WORDS))


@asynccontextmanager
async def watched(transport: AbstractAsyncContextManager[Any], link: Link) -> AsyncGenerator[Any]:
    """Wrap a transport of the SDK. Its end is reported to the link before the SDK's session notices it."""
    async with transport as (read, write):
        asked = _Asked()
        yield _WatchedStream(read, link, asked), _AnswerStream(write, asked)


class _Asked:
    """Counter of the server's requests that the SDK has not answered; the SDK runs a task for each of them.

    A server may send requests faster than they are answered, so reading pauses. The pause is bounded, because a request
    may wait for a person, or never be answered because the server has withdrawn it.
    """

    def __init__(self) -> None:
        self._count = 0
        self._has_fallen = anyio.Event()

    async def one_more(self) -> None:
        """Count a request, and pause if there are too many."""
        self._count += 1
        if self._count < _MOST_ASKED:
            return
        with anyio.move_on_after(_PAUSE) as pause:
            while self._count >= _MOST_ASKED:
                self._has_fallen = anyio.Event()
                await self._has_fallen.wait()
        if pause.cancelled_caught:
            # Some of them will never be answered. Count anew, or every further message would pause.
            self._count = 0

    def one_less(self) -> None:
        """Count an answer, and end a pause of reading."""
        if self._count:
            self._count -= 1
            self._has_fallen.set()


class _InPlaceOf:
    """Wrapper of a transport's stream, which closes that stream."""

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
    """Stream of messages to a server, which counts answers."""

    def __init__(self, stream: Any, asked: _Asked) -> None:
        self._stream = stream
        self._asked = asked

    async def send(self, item: Any, /) -> None:
        await self._stream.send(item)
        if isinstance(item.message, (JSONRPCResponse, JSONRPCError)):
            self._asked.one_less()


class _WatchedStream(_InPlaceOf):
    """Stream of messages from a server. It wraps the transport's stream directly, without a task or a buffer."""

    def __init__(self, stream: Any, link: Link, asked: _Asked) -> None:
        self._stream = stream
        self._link = link
        self._asked = asked

    @property
    def last_context(self) -> Any:
        """Context of the sender of the last message, if the transport knows it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        try:
            message = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            # Before the session fails its requests: `is_end()` looks at the link to tell why they failed.
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
