"""Rules for URLs and addresses, connections to allowed addresses only, and requests within limits of time and size.

A name is resolved once, and the address that was checked is used.
"""

import logging
import math
import os
import re
import secrets
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import unquote, urlsplit

import anyio
import httpcore2
import httpx2
from anyio.lowlevel import checkpoint
from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream

from callboard import progress, remaining
from callboard.extend import Address, Resolver, is_public_address, literal
from callboard.guards import Url
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

# Rules; they decide, and never wait.

_MOST_NAMED = 20
"""Maximum number of allowed hosts that an error text lists for a model."""
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that decide which URLs a client may request, and to which IP addresses it may connect."""

    form: Url
    """Rule for the form and the port of every URL."""
    hosts: Url
    """Rule for the host of a URL; an address in one of `networks` is allowed without it."""
    networks: tuple[Network, ...]
    """Networks whose addresses are allowed even if they are not public."""
    private: bool
    """True if every address is allowed, also private ones."""
    allowed: str
    """Sentence that tells a model which hosts are allowed."""

    def check(self, url: str) -> str:
        """Return the URL in its normal form; raise ValueError if the client may not request this URL."""
        # The error quotes no part of the URL.
        written = self.form.check(url)
        assert written is not None
        address = literal(urlsplit(written).hostname or "")
        if address is None or not self._is_in_networks(address):
            self.hosts.check(written)
        return written

    def permits(self, address: Address) -> bool:
        """Return whether an IP address is public or explicitly allowed, so that the client may connect to it."""
        return self.private or is_public_address(address) or self._is_in_networks(address)

    def _is_in_networks(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def rules_of(allow: Sequence[str] | None, *, private: bool, ports: Collection[int] | None) -> Rules:
    """Return the rules for the options `allow`, `allow_private` and `ports` of `HttpClient`."""
    if isinstance(allow, str):
        raise TypeError(f"HttpClient(allow={allow!r}) is one text; give a list of hosts: allow=[{allow!r}]")
    if allow is not None and not allow:
        raise ValueError("HttpClient(allow=[]) allows no host at all; name some, or leave it out for any public one")
    found = {one: _network(one) for one in allow or ()}
    named = "Any public host may be asked." if allow is None else f"Allowed: {', '.join([*allow][:_MOST_NAMED])}."
    hosts = None if allow is None else [one for one, network in found.items() if network is None]
    networks = tuple(network for network in found.values() if network is not None)
    try:
        return Rules(Url(private=True, ports=ports), Url(hosts=hosts, private=private), networks, private, named)
    except ValueError as error:
        raise ValueError(f"HttpClient(allow={allow!r}): {error}") from None


def _network(written: str) -> Network | None:
    """Return an entry of `allow` as a network, or `None` if the entry is a host name."""
    try:
        return ip_network(written.removeprefix("[").removesuffix("]"))
    except ValueError:
        if "/" in written:
            raise ValueError(
                f"HttpClient(allow=[{written!r}, ...]) takes hosts such as 'example.org' or '*.example.org', and "
                "networks such as '10.0.0.0/8'; a URL and a network with bits behind its mask are neither"
            ) from None
        return None


# Connections.

_HEAD_START = 0.25
"""Seconds that an attempt to connect may take before the next address is tried in parallel (RFC 8305, section 5)."""
_Connect = Callable[[str], Awaitable[AsyncNetworkStream]]


class GuardedBackend(AsyncNetworkBackend):
    """Network backend of `httpcore2` that connects only to IP addresses that its `Rules` permit.

    TLS and the Host header use the name: `httpcore2` never sees the address.
    """

    def __init__(self, rules: Rules, resolver: Resolver) -> None:
        self._rules = rules
        self._resolver = resolver
        self._plain = unguarded()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        """Connect to a host; raise AddressRefusedError if one of its addresses is not permitted."""

        async def connect(address: str) -> AsyncNetworkStream:
            return await self._plain.connect_tcp(address, port, None, local_address, socket_options)

        try:
            with anyio.fail_after(timeout):
                return await first_connected(connect, await self._addresses(host, port))
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"{host} did not answer within {timeout:g} s") from error

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host; raise AddressRefusedError if any of them is not permitted."""
        if literal(host) is not None:
            found: Iterable[str] = [host]
        else:
            try:
                found = await self._resolver(host, port)
            except (OSError, UnicodeError) as error:
                raise httpcore2.ConnectError(f"{host} has no address: {error}") from error
        addresses = list(found)
        for written in addresses:
            address = literal(written)
            # All addresses, not only the first: any of them may be connected to below.
            if address is None or not self._rules.permits(address):
                raise AddressRefusedError(host, written)
        if not addresses:
            raise httpcore2.ConnectError(f"{host} has no address")
        return addresses

    async def sleep(self, seconds: float) -> None:
        """Sleep on asyncio or trio; `httpcore2` calls this between its own attempts to connect."""
        await anyio.sleep(seconds)


def unguarded() -> AsyncNetworkBackend:
    """Return a network backend that connects to any address, without checks, on asyncio and trio."""
    return cast("AsyncNetworkBackend", httpcore2.AnyIOBackend())  # pyright sees the stub for missing anyio


async def first_connected(connect: _Connect, addresses: Sequence[str]) -> AsyncNetworkStream:
    """Try to connect to the addresses of a host, and return the first connection that is made."""
    # The next address is tried when the attempt before it has failed, or takes longer than `_HEAD_START`.
    found: list[AsyncNetworkStream] = []
    errors: list[Exception] = []

    async def attempt(address: str, failed: anyio.Event) -> None:
        try:
            found.append(await connect(address))
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            errors.append(error)
            failed.set()
        else:
            group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            for address in addresses:
                failed = anyio.Event()
                group.start_soon(attempt, address, failed)
                with anyio.move_on_after(_HEAD_START):
                    await failed.wait()
    except BaseException:
        # Connections that were made before the error or cancellation must not leak.
        await _close(found)
        raise
    if not found:
        raise httpcore2.ConnectError(str(errors[0])) from errors[0]
    # A second attempt may have succeeded before the first success cancelled it.
    await _close(found[1:])
    return found[0]


async def _close(streams: Iterable[AsyncNetworkStream]) -> None:
    with anyio.CancelScope(shield=True):
        for stream in streams:
            await stream.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Options of a connection pool: TLS context, number of connections, and proxy URL (`None` without a proxy)."""

    tls: ssl.SSLContext | None
    connections: int
    proxy: str | None


def pool_of(backend: AsyncNetworkBackend, options: PoolOptions) -> httpcore2.AsyncConnectionPool:
    """Return a connection pool that opens its connections through `backend`."""
    context = options.tls or httpx2.create_ssl_context(trust_env=False)
    if options.proxy is None:
        return httpcore2.AsyncConnectionPool(
            context, max_connections=options.connections, keepalive_expiry=5.0, network_backend=backend
        )
    # All connections go to the proxy, whatever its address is.
    there = httpx2.Proxy(options.proxy)
    return httpcore2.AsyncHTTPProxy(
        str(there.url),
        proxy_auth=there.raw_auth,
        ssl_context=context,
        max_connections=options.connections,
        network_backend=unguarded(),
    )


# Time limit of a request.

_LEAST = 0.1
"""Minimum seconds for a request, used when its tool call has no time left."""
_here: ContextVar["Allowance | None"] = ContextVar("callboard_http_allowance", default=None)


class Allowance(anyio.ContextManagerMixin):
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

    @contextmanager
    def __contextmanager__(self) -> Generator[Self]:
        """Cancel the `with` block when its time limit has passed. The block then ends without an error."""
        token = _here.set(self)
        try:
            with self._scope:
                yield self
        finally:
            _here.reset(token)

    @property
    def seconds(self) -> float:
        """Seconds from the start of the request to its current deadline; `renew()` may move the deadline."""
        return self._scope.deadline - self._begin

    def renew(self) -> None:
        """Compute the deadline again, because a received piece of a response may have extended the tool call's time."""
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
    """Read up to `most` bytes of a response's body, and return the response as a `Page`."""
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
    """Save a response body in a new file; return the path (`None` if the body is too large) and the body's size."""
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
    """Return a new file name for the response from a URL, without characters that could lead to another folder."""
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
    """Return an `httpx2` client that connects only to permitted addresses. It has its own connection pool."""
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
    """Send a request once, and read up to `most` bytes of the response; raise HttpError if no response arrives."""
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
    """Convert an error of the HTTP library to the HttpError for the caller; return any other error unchanged."""
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
