"""Single requests over an open `httpx2` client: each ends with one response or one error.

The client uses a connection pool of `httpcore2` that is made here. The transport of `httpx2` has no option for the way
in which connections are made, so `Transport` takes its place.
"""

import logging
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import AsyncExitStack
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Self

import httpcore2
import httpx2

from callboard.extend import Resolver
from callboard_actors.http._body import Store, read_body
from callboard_actors.http._errors import AddressRefusedError, HttpError, UnreadableError, UrlRefusedError, shown
from callboard_actors.http._guard import GuardedBackend, pool_of
from callboard_actors.http._page import Page
from callboard_actors.http._request import Request, redirect_of
from callboard_actors.http._rules import Rules

# Transport over a pool of `httpcore2`.


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


# Requests.

_log = logging.getLogger("callboard")

_PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_NOT_SENT = (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout, httpcore2.ProxyError)
_FAILED = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError)


class Wire:
    """Connection pool with an `httpx2` client.

    Args:
        rules: permitted addresses.
        resolver: from names to addresses.
        timeouts: for a connection, a read, a write and a place in the pool.
        connections: largest number of connections.
        context: for TLS; `None` for the system's certificates.
        proxy: URL of the proxy for all connections, if any.
        cookies: whether cookies are kept.
    """

    def __init__(
        self,
        rules: Rules,
        resolver: Resolver,
        *,
        timeouts: httpx2.Timeout,
        connections: int,
        context: ssl.SSLContext | None,
        proxy: str | None,
        cookies: bool,
    ) -> None:
        if context is None:
            context = httpx2.create_ssl_context(trust_env=False)
        pool = pool_of(GuardedBackend(rules, resolver), context=context, connections=connections, proxy=proxy)
        jar = CookieJar(None if cookies else DefaultCookiePolicy(allowed_domains=[]))
        self._client = httpx2.AsyncClient(
            transport=Transport(pool), timeout=timeouts, cookies=jar, trust_env=False, follow_redirects=False
        )
        self._stack = AsyncExitStack()
        if proxy is None and (found := next((name for name in _PROXY_VARIABLES if os.environ.get(name)), None)):
            _log.warning("HttpClient does not go by %s; HttpClient(proxy=..., trust_proxy=True) uses a proxy", found)

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def send(self, request: Request, headers: Mapping[str, str], most: int, store: Store | None) -> Page:
        """Send a request once, and read up to `most` bytes of the response; raise HttpError if there is none."""
        try:
            built = self._client.build_request(request.method, request.url, headers=headers, content=request.content)
            response = await self._client.send(built, stream=True)
        except Exception as error:
            raise _told(request, error) from error
        try:
            self._check_encoding(request, response)
            # The body of a redirect is not wanted.
            is_read = redirect_of(request.url, response.status_code, response.headers) is None
            body = await read_body(response, most if is_read else 0, store if is_read else None)
        except Exception as error:
            raise _told(request, error) from error
        finally:
            await response.aclose()
        return Page(
            method=request.method,
            url=request.url,
            status=response.status_code,
            reason=response.reason_phrase,
            headers=dict(response.headers),
            data=body.data,
            is_cut=body.is_cut,
            saved=body.saved,
            size=body.size,
            sha256=body.sha256,
        )

    def _check_encoding(self, request: Request, response: httpx2.Response) -> None:
        """Raise for a compression that was not asked for: the compressed bytes would be taken for the content."""
        asked = {one.strip() for one in self._client.headers["accept-encoding"].split(",")} | {"identity", ""}
        for encoding in response.headers.get("content-encoding", "").lower().split(","):
            if encoding.strip() not in asked:
                what = "its body is compressed in a way that was not asked for"
                raise UnreadableError(request.method, request.url, what)


def _told(request: Request, error: Exception) -> Exception:
    """Return the error for the caller; an error that does not come from the network is returned unchanged."""
    if isinstance(error, AddressRefusedError):
        refused = UrlRefusedError(request.method, request.url, str(error))
        refused.add_note(error.remedy)
        return refused
    if isinstance(error, httpx2.DecodingError):
        return UnreadableError(request.method, request.url, "its body is compressed in a way that cannot be undone")
    if isinstance(error, (httpx2.InvalidURL, httpcore2.UnsupportedProtocol)):
        return UrlRefusedError(request.method, request.url, f"it is no URL: {error}")
    if not isinstance(error, _FAILED):
        return error
    was_sent = not isinstance(error, _NOT_SENT)
    if isinstance(error, httpcore2.TimeoutException):
        what = "the server did not go on in time" if was_sent else f"{request.host} could not be connected to in time"
    else:
        what = f"the connection failed ({str(error) or type(error).__name__})" if was_sent else str(error)
    advice = "Try again later, or ask another server."
    if was_sent and not request.is_safe:
        advice = "The server may have done what was asked: look before you ask again."
    return HttpError(request.method, request.url, shown(what), advice, was_sent=was_sent)
