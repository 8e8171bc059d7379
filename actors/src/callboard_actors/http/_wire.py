"""Sending of an HTTP request, and reading of its response, within limits of time and size."""

import logging
import math
import os
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing
from contextvars import ContextVar, Token
from dataclasses import dataclass
from hashlib import sha256
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import anyio
import httpcore2
import httpx2
from anyio.lowlevel import checkpoint

from callboard import progress, remaining
from callboard.extend import Resolver
from callboard_actors.http._guard import GuardedBackend, PoolOptions, Rules, pool_of
from callboard_actors.http._page import Page, is_text, media_type_of
from callboard_actors.http._request import (
    AddressRefusedError,
    HttpError,
    Request,
    UnreadableError,
    UrlRefusedError,
    redirect_of,
    shown,
)

# Time limit of a request.

_LEAST = 0.1
"""Minimum seconds for a request, used when its tool call has no time left."""
_here: ContextVar["Allowance | None"] = ContextVar("callboard_http_allowance", default=None)


class Allowance:
    """Time limit of one request, including its redirects, retries and waits.

    `share` is the part of the tool call's remaining time that the request may use; the rest is for the call's
    answer. With 0, the time of the call does not count.

    Each received piece of a body postpones the call's idle timeout, and with it this limit.
    """

    def __init__(self, seconds: float, *, share: float = 0.0) -> None:
        self._begin = anyio.current_time()
        self._until = self._begin + seconds
        left = remaining() if share else math.inf
        self._reserve = None if left == math.inf else (1 - share) * left
        self._scope = anyio.CancelScope(deadline=self._end())
        self._token: Token[Allowance | None]

    def __enter__(self) -> Self:
        """Enter a block that is cancelled when the time is over. The block then ends without an error."""
        self._token = _here.set(self)
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        _here.reset(self._token)
        return bool(self._scope.__exit__(kind, error, traceback))

    @property
    def seconds(self) -> float:
        """Seconds from the start of the request to its current deadline; `renew()` may move the deadline."""
        return self._scope.deadline - self._begin

    def renew(self) -> None:
        """Set the deadline again, from the time that the tool call has left now."""
        if self._reserve is not None:
            self._scope.deadline = math.inf  # otherwise `remaining()` would see this scope's own deadline
            self._scope.deadline = self._end()

    def _end(self) -> float:
        if self._reserve is None:
            return self._until
        end = anyio.current_time() + remaining() - self._reserve
        return min(self._until, max(self._begin + _LEAST, end))


# Body of a response.

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 60
_LENGTH = re.compile(r"[0-9]{1,15}")
"""Pattern of a valid Content-Length."""


@dataclass(frozen=True, slots=True)
class Store:
    """Folder for response bodies that are not text, or too long to be read.

    `most` is the maximum size of a saved body, in bytes.
    """

    folder: Path
    most: int


async def _parts_of(response: httpx2.Response, digest: Any) -> AsyncGenerator[bytes]:
    """Yield a response body piece by piece, after decompression."""
    # Each piece is reported as progress of the call, in bytes before decompression.
    length = response.headers.get("content-length", "")
    total = int(length) if _LENGTH.fullmatch(length) else None
    async with aclosing(response.aiter_bytes()) as parts:
        async for part in parts:
            digest.update(part)
            progress("bytes read", done=response.num_bytes_downloaded, total=total)
            if (allowance := _here.get()) is not None:
                allowance.renew()
            await checkpoint()  # one network part can decompress into many, and other tasks must run between them
            yield part


async def _page_of(request: Request, response: httpx2.Response, most: int, store: Store | None) -> Page:
    """Return the page of a response, with up to `most` bytes of its body."""
    # If there is a store, the whole body is saved there if it is longer, or is not text.
    # `httpx2` decompresses at most a MiB at a time, so memory use stays bounded for any compressed body.
    digest = sha256()
    async with aclosing(_parts_of(response, digest)) as parts:
        body = bytearray()
        async for part in parts:
            body += part
            if len(body) > most:
                break
        data, size, saved, is_cut = bytes(body), len(body), None, len(body) > most
        media_type = media_type_of(response.headers.get("content-type", ""))
        if store is not None and data and (is_cut or not is_text(media_type, data)):
            saved, size = await _kept(store, str(response.url), data, parts)
    return Page(
        method=request.method,
        url=request.url,
        status=response.status_code,
        reason=response.reason_phrase,
        headers=dict(response.headers),
        data=data[:most],
        is_cut=is_cut,
        saved=saved,
        size=size,
        sha256=digest.hexdigest() if saved is not None or not is_cut else None,
    )


async def _kept(store: Store, url: str, begin: bytes, rest: AsyncIterator[bytes]) -> tuple[Path | None, int]:
    """Save a body in a new file; return the path and the size in bytes."""
    # The path is `None` if the body is larger than the store allows; no file remains then.
    path = store.folder / _name(url)
    size, is_whole = len(begin), False
    try:
        # "x" never overwrites a file, and follows no link that exists under this name.
        async with await anyio.open_file(path, "xb") as file:
            await file.write(begin)
            async for part in rest:
                size += len(part)
                if size > store.most:
                    return None, size
                await file.write(part)
            is_whole = size <= store.most
            return (path if is_whole else None), size
    finally:
        if not is_whole:
            # Also when the task is cancelled: no partial file remains.
            path.unlink(missing_ok=True)


def _name(url: str) -> str:
    """Return a new file name for the body at a URL; no part of the URL can lead out of the folder."""
    written = _NOT_IN_NAMES.sub("-", unquote(urlsplit(url).path).rpartition("/")[2]).strip("-.")[-_LONGEST_NAME:]
    stem, dot, suffix = written.rpartition(".")
    return f"{stem or written or 'body'}-{secrets.token_hex(4)}{dot}{suffix if dot else ''}"


# Transport over a pool of `httpcore2`.


class Transport(httpx2.AsyncBaseTransport):
    """Transport for an `httpx2` client that sends requests over a connection pool of `httpcore2`.

    Failed requests raise the errors of `httpcore2`.
    """

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


def client_of(
    rules: Rules, resolver: Resolver, timeouts: httpx2.Timeout, *, pool: PoolOptions, cookies: bool
) -> httpx2.AsyncClient:
    """Return an `httpx2` client that connects only to permitted addresses. It has its own connection pool.

    The pool is closed with the client.
    """
    if pool.proxy is None and (found := next((name for name in _PROXY_VARIABLES if os.environ.get(name)), None)):
        _log.warning("HttpClient does not go by %s; HttpClient(trusted_proxy=...) uses a proxy", found)
    return httpx2.AsyncClient(
        transport=Transport(pool_of(GuardedBackend(rules, resolver), pool)),
        timeout=timeouts,
        cookies=CookieJar(None if cookies else DefaultCookiePolicy(allowed_domains=[])),
        trust_env=False,
        follow_redirects=False,
    )


async def send(
    client: httpx2.AsyncClient, request: Request, headers: Mapping[str, str], most: int, store: Store | None
) -> Page:
    """Send a request once, and read up to `most` bytes of the response; raise HttpError if there is none."""
    try:
        built = client.build_request(request.method, request.url, headers=headers, content=request.content)
        response = await client.send(built, stream=True)
        try:
            _check_encoding(request, built, response)
            # The body of a redirect is not wanted.
            is_read = redirect_of(request.url, response.status_code, response.headers) is None
            return await _page_of(request, response, most if is_read else 0, store if is_read else None)
        finally:
            await response.aclose()
    except Exception as error:
        raise _told(request, error) from error


def _check_encoding(request: Request, built: httpx2.Request, response: httpx2.Response) -> None:
    """Raise UnreadableError if the response is compressed in a way that the request did not offer."""
    # Otherwise the compressed bytes would be taken for the content.
    asked = {one.strip() for one in built.headers["accept-encoding"].split(",")} | {"identity", ""}
    for encoding in response.headers.get("content-encoding", "").lower().split(","):
        if encoding.strip() not in asked:
            raise UnreadableError(request.method, request.url, "its body is compressed in a way that was not asked for")


def _told(request: Request, error: Exception) -> Exception:
    """Return the error that the caller of a failed request gets."""
    # An error that does not come from the network is returned unchanged.
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
    return lost(request, shown(what), was_sent=was_sent)


def lost(request: Request, why: str, *, was_sent: bool) -> HttpError:
    """Return the error for a request that got no response; its advice tells a model whether to try again."""
    advice = "Try again later, or ask another server."
    if was_sent and not request.is_safe:
        advice = "The server may have done what was asked: look before you ask again."
    return HttpError(request.method, request.url, why, advice, was_sent=was_sent)
