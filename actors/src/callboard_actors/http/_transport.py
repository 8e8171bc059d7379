"""Transport of `httpx2` over a connection pool of `httpcore2` that is made here.

The transport of `httpx2` has no option for the way in which connections are made.
"""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

import httpcore2
import httpx2


class Transport(httpx2.AsyncBaseTransport):
    """Transport that sends requests over a pool; errors are those of `httpcore2`."""

    def __init__(self, pool: httpcore2.AsyncConnectionPool) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return when the head of the response has arrived."""
        url = request.url
        answer = await self._pool.handle_async_request(
            httpcore2.Request(
                request.method,
                httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        assert isinstance(answer.stream, AsyncIterable)
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_Body(answer.stream), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        """Close all connections of the pool; called when the `httpx2` client is closed."""
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = self._stream.__aiter__()
        try:
            async for part in parts:
                yield part
        finally:
            if isinstance(parts, AsyncGenerator):  # trio warns of a generator that is left to the garbage collector
                await parts.aclose()

    async def aclose(self) -> None:
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()
