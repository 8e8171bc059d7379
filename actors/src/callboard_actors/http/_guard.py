"""`GuardedTransport`: transport for clients of httpx2 and httpx that connects only to addresses that were checked.

A name is resolved once for each connection, and the address that was checked is used.
"""

import logging
import os
import ssl
import zlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpcore2
import httpx2
from anyio.lowlevel import checkpoint

from callboard import CallboardError
from callboard.extend import Address, Resolver, is_public_address, literal, system_resolver
from callboard.guards import Url
from callboard_actors._util._excerpts import clean_text
from callboard_actors._util._options import check_counts, check_seconds

# Errors.

_LONGEST_URL = 300


class UrlRefusedError(CallboardError):
    """Raised for a request that was not sent, because its URL or the address of its host is not allowed.

    `url` is that of the request, after redirects; `reason` is a clause such as "its host is not a public one".
    """

    def __init__(self, url: str, reason: str, allowed: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"{display_url(url)} was not requested: {reason}. {allowed}")


def display_url(url: str) -> str:
    """Return a URL as it is quoted in texts: without invisible characters, and cut if it is very long."""
    # Half a surrogate pair could be neither sent to a model nor stored.
    url = clean_text(url[: 2 * _LONGEST_URL]).encode(errors="replace").decode()
    return url if len(url) <= _LONGEST_URL else f"{url[:_LONGEST_URL]}..."


class _AddressRefusedError(Exception):
    """Raised if a host has an IP address that is not allowed. No connection was made."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__("its host has an address that is not public")
        # Not in the text, which a model may read: it must not learn addresses of a network. Tracebacks show this note.
        self.remedy = f"The address of {host!r} is {address}; the option hosts=[..., {address!r}] permits it."


# Rules.

_MOST_LISTED = 20
"""Maximum number of allowed hosts that the text of an error lists."""
_Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that decide which URLs may be requested, and to which IP addresses a connection may be made."""

    form: Url
    """Rule for the form and the port of every URL."""
    hosts: Url
    """Rule for the host of a URL; an address in one of `networks` is allowed without it."""
    networks: tuple[_Network, ...]
    """Networks whose addresses are allowed even if they are not public."""
    private: bool
    """True if every address is allowed, also private ones."""
    allowed: str
    """Sentence that says which hosts are allowed."""

    def check(self, url: str) -> str:
        """Return the URL in its normal form; raise UrlRefusedError if it may not be requested."""
        try:
            checked_url = self.form.check(url)
            assert checked_url is not None
            address = literal(httpx2.URL(checked_url).host)
            if address is None or not self._is_in_networks(address):
                self.hosts.check(checked_url)
        except ValueError as refused:
            raise UrlRefusedError(url, str(refused), self.allowed) from None
        return checked_url

    def permits(self, address: Address) -> bool:
        """Return whether an IP address is public or explicitly allowed, so that a connection may be made to it."""
        return self.private or is_public_address(address) or self._is_in_networks(address)

    def _is_in_networks(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def rules_of(owner: str, hosts: Sequence[str] | None, *, private: bool, ports: Collection[int] | None) -> Rules:
    """Return the rules for the options `hosts`, `allow_private` and `ports`; `owner` is named in errors."""
    if isinstance(hosts, str):
        raise TypeError(f"{owner}(hosts={hosts!r}) is one text; give a list of hosts: hosts=[{hosts!r}]")
    if hosts is not None and not hosts:
        raise ValueError(f"{owner}(hosts=[]) allows no host at all; name some, or leave it out for any public one")
    names: list[str] = []
    networks: list[_Network] = []
    for host in hosts or ():
        try:
            networks.append(ip_network(host.removeprefix("[").removesuffix("]")))
        except ValueError:
            if "/" in host:
                raise ValueError(
                    f"{owner}(hosts=[{host!r}, ...]) takes hosts such as 'example.org' or '*.example.org', and "
                    "networks such as '10.0.0.0/8'; a URL and a network with bits behind its mask are neither"
                ) from None
            names.append(host)
    allowed = "Any public host is allowed." if hosts is None else f"Allowed: {', '.join([*hosts][:_MOST_LISTED])}."
    try:
        return Rules(
            form=Url(private=True, ports=ports),
            hosts=Url(hosts=None if hosts is None else names, private=private),
            networks=tuple(networks),
            private=private,
            allowed=allowed,
        )
    except ValueError as error:
        raise ValueError(f"{owner}(hosts={hosts!r}): {error}") from None


# Connections.

_HEAD_START = 1.0
"""Seconds after which the next address of a host is tried instead of one that does not answer."""
_MOST_HEAD_BYTES = 64 * 1024
"""Maximum bytes of the head of a response."""
_MOST_HEAD_LINES = 400
"""Maximum lines of the head of a response and its interim responses: `h11` needs time for each, cookies need more."""
_HEAD_PIECE = 4096
"""Bytes of a head that are read at once: `h11` handles all interim responses in them without a pause."""


class _BoundedStream(httpcore2.AsyncNetworkStream):
    """Connection to a server that refuses to read the head of a response beyond its bounds."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self.is_in_head = True
        """`True` from the last write, which ends a request, until the head of its response has been read."""
        self._head_bytes = self._head_lines = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read up to `max_bytes` bytes; raise RemoteProtocolError if the head of the response is too long."""
        if not self.is_in_head:
            return await self._stream.read(max_bytes, timeout)
        if self._head_bytes > _MOST_HEAD_BYTES or self._head_lines > _MOST_HEAD_LINES:
            raise httpcore2.RemoteProtocolError(
                f"the head of the response has more than {_MOST_HEAD_BYTES:,} bytes or {_MOST_HEAD_LINES:,} lines"
            )
        data = await self._stream.read(min(max_bytes, _HEAD_PIECE), timeout)
        self._head_bytes += len(data)
        self._head_lines += data.count(b"\n")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all bytes of the buffer; the next read is the first of a response's head."""
        self.is_in_head = True
        self._head_bytes = self._head_lines = 0
        await self._stream.write(buffer, timeout)

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        """Return the connection with TLS; the certificate is checked for the name of the host."""
        return _BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """Return information about the connection, such as its socket."""
        return self if info == "bounded_stream" else self._stream.get_extra_info(info)

    async def aclose(self) -> None:
        """Close the connection to the server."""
        await self._stream.aclose()


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Network backend of `httpcore2` that connects only to IP addresses that its `Rules` permit.

    TLS and the Host header use the name: `httpcore2` never sees the address.
    """

    def __init__(self, rules: Rules, resolver: Resolver) -> None:
        self._rules = rules
        self._resolver = resolver
        self._network = plain_network()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to a host; raise an error if one of its addresses is not permitted."""
        try:
            with anyio.fail_after(timeout):
                *others, last = await self._addresses_of(host, port)
                for address in others:
                    with anyio.move_on_after(_HEAD_START), suppress(httpcore2.ConnectError):
                        return await self._connect(address, port, local_address, socket_options)
                return await self._connect(last, port, local_address, socket_options)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"{host} did not answer within {timeout:g} s") from error

    async def _connect(self, address: str, port: int, *options: Any) -> _BoundedStream:
        return _BoundedStream(await self._network.connect_tcp(address, port, None, *options))

    async def _addresses_of(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host, which are all permitted."""
        if literal(host) is not None:
            addresses = [host]
        else:
            try:
                addresses = [*await self._resolver(host, port)]
            except (OSError, UnicodeError) as error:
                raise httpcore2.ConnectError(f"{host} has no address: {error}") from error
        for text in addresses:
            address = literal(text)
            # All addresses, not only the first: any of them may be connected to.
            if address is None or not self._rules.permits(address):
                raise _AddressRefusedError(host, text)
        if not addresses:
            raise httpcore2.ConnectError(f"{host} has no address")
        return addresses

    async def sleep(self, seconds: float) -> None:
        """Sleep on asyncio or trio; `httpcore2` calls this between its own attempts to connect."""
        await anyio.sleep(seconds)


def plain_network() -> httpcore2.AsyncNetworkBackend:
    """Return a network backend that connects to any address, without checks, on asyncio and trio."""
    return cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())  # pyright sees the stub for missing anyio


# Bodies of responses.

_PIECE = 64 * 1024
"""Maximum bytes of a decompressed piece."""
_GZIP = 31
"""Value of `wbits` by which `zlib` reads gzip."""


class _Body(httpx2.AsyncByteStream):
    """Body of a response: decompressed in small pieces, and bounded in bytes and time."""

    def __init__(
        self, response: httpcore2.Response, library: Any, *, is_gzip: bool, max_bytes: int, end: float
    ) -> None:
        self._response = response
        self._library = library
        self._decoder = zlib.decompressobj(_GZIP) if is_gzip else None
        self._max_bytes = max_bytes
        self._end = end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        # A generator that is left to the garbage collector is a warning on trio.
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                for piece in self._pieces_of(part):
                    yield piece[: self._max_bytes - size]
                    size += len(piece)
                    if size > self._max_bytes:
                        raise self._too_long()
                    await checkpoint()  # a part may decompress into many pieces, and other tasks run between them

    async def _parts(self) -> AsyncGenerator[bytes]:
        """Yield the received parts of the body, which may be compressed."""
        received = 0
        async with aclosing(aiter(cast("Any", self._response.stream))) as parts:
            while True:
                with _raising_errors_of(self._library), anyio.fail_after(self._end - anyio.current_time()):
                    part = await anext(parts, None)
                if part is None:
                    break
                if received > self._max_bytes:
                    raise self._too_long()  # otherwise a body that decompresses to nothing could go on for ever
                received += len(part)
                yield part
        if self._decoder is not None and received and not self._decoder.eof:
            raise self._library.DecodingError("the compressed body ends too early")

    def _pieces_of(self, part: bytes) -> Iterator[bytes]:
        """Yield the content of a received part in pieces of at most `_PIECE` bytes, some of which may be empty."""
        if self._decoder is None:
            yield part
            return
        piece = None
        while part or piece is None or len(piece) == _PIECE:
            with _raising_errors_of(self._library):
                piece = self._decoder.decompress(part, _PIECE)
            part = self._decoder.unconsumed_tail
            yield piece
        if self._decoder.unused_data:
            raise self._library.DecodingError("the compressed body goes on after its end")

    def _too_long(self) -> Exception:
        error: Exception = self._library.ReadError(
            f"the body has more than {self._max_bytes:,} bytes; the option max_bytes= permits more"
        )
        return error

    async def aclose(self) -> None:
        """Close the response; the connection is kept for other requests only if the body was read to its end."""
        await self._response.aclose()


@cache
def _body_type(library: Any) -> type[_Body]:
    """Return the class of bodies for a library: its client takes only subclasses of its own class."""
    return _Body if library is httpx2 else type("_Body", (_Body, library.AsyncByteStream), {})


@contextmanager
def _raising_errors_of(library: Any) -> Generator[None]:
    """Raise errors of `httpcore2`, of decompression and of time as errors of the library."""
    try:
        yield
    except TimeoutError as error:
        raise library.ReadTimeout("the response did not end in time") from error
    except zlib.error as error:
        raise library.DecodingError(str(error)) from error
    except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        raise getattr(library, type(error).__name__)(str(error)) from error


# The transport.

_MOST_CONNECTIONS = 100
_log = logging.getLogger("callboard")
_PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")

if TYPE_CHECKING:
    from httpx import AsyncBaseTransport as _TransportOfHttpx
else:
    _TransportOfHttpx = object  # a client of httpx calls methods only, and httpx may not be installed


class GuardedTransport(httpx2.AsyncBaseTransport, _TransportOfHttpx):
    """Transport for an `AsyncClient` of httpx2 or httpx: requests go only to addresses that were checked.

        async with httpx2.AsyncClient(transport=GuardedTransport()) as client:
            response = await client.get("https://example.org/")

    Each request and each redirect is checked. A connection is made to the address that was checked, and TLS to the name
    of the host. Responses may be compressed once, with gzip. The transport connects directly: a client with `proxy=`
    or `mounts=` does not use it.

    Refused requests raise `UrlRefusedError`; other failures raise the errors of httpx2 or httpx. A client sends its own
    `headers=` and cookies to other hosts, too, if it follows redirects; only `Authorization` is kept back.

    Args:
        hosts: allowed hosts ("example.org", "*.example.org", "*" for any public one) and networks ("10.0.0.0/8");
            `None` for any public host. All addresses of a host name must be public, or in a network of the list.
        allow_private: whether every address is allowed, those of this machine included.
        ports: allowed ports; `None` for any.
        max_bytes: largest body of a response, in bytes, before and after decompression.
        timeout: seconds for a request until the end of its body. The timeouts of the client hold, too.
        resolver: async function from a host and a port to addresses.
        tls: context for https; by default with the system's certificates.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: for a number out of range, or an invalid host.
    """

    def __init__(
        self,
        *,
        hosts: Sequence[str] | None = None,
        allow_private: bool = False,
        ports: Collection[int] | None = None,
        max_bytes: int = 16_000_000,
        timeout: float = 60.0,
        resolver: Resolver = system_resolver,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_seconds("GuardedTransport", timeout=timeout)
        check_counts("GuardedTransport", [("max_bytes", max_bytes, 1)])
        if not callable(resolver):
            raise TypeError(f"GuardedTransport(resolver={resolver!r}) is an async function of a host and a port")
        if not (tls is None or isinstance(cast("object", tls), ssl.SSLContext)):
            raise TypeError(f"GuardedTransport(tls={tls!r}) is an ssl.SSLContext; leave it out for the usual checks")
        self._rules = rules_of("GuardedTransport", hosts, private=allow_private, ports=ports)
        self._max_bytes, self._timeout = max_bytes, timeout
        self._pool = httpcore2.AsyncConnectionPool(
            httpx2.create_ssl_context() if tls is None else tls,
            max_connections=_MOST_CONNECTIONS,
            keepalive_expiry=5.0,
            network_backend=GuardedBackend(self._rules, resolver),
        )
        if (variable := next((name for name in _PROXY_VARIABLES if os.environ.get(name)), None)) is not None:
            _warn_of_proxy(variable)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request of httpx2 or httpx, and return when the head of the response has arrived.

        Args:
            request: an `httpx2.Request` or `httpx.Request`; the `Response` is of the same library.

        Raises:
            UrlRefusedError: if the URL or the address of its host is not allowed; nothing was sent.
        """
        # httpx is installed if the request is an object of it.
        library: Any = httpx2 if isinstance(request, httpx2.Request) else import_module("httpx")
        url = request.url
        # Only the host and the port decide. They are those that are connected to, whatever the rest of the URL is.
        user = f"{url.userinfo.decode('ascii', 'replace')}@" if url.userinfo else ""
        self._rules.check(f"{url.scheme}://{user}{url.netloc.decode('ascii', 'replace')}/")
        headers = [field for field in request.headers.raw if field[0].lower() != b"accept-encoding"]
        outgoing = httpcore2.Request(
            request.method,
            httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=[*headers, (b"Accept-Encoding", b"gzip")],
            content=cast("AsyncIterable[bytes]", request.stream),
            extensions=request.extensions,
        )
        end = anyio.current_time() + self._timeout
        try:
            with _raising_errors_of(library), anyio.fail_after(self._timeout):
                response = await self._pool.handle_async_request(outgoing)
        except _AddressRefusedError as error:
            refused = UrlRefusedError(str(url), str(error), self._rules.allowed)
            refused.add_note(error.remedy)
            raise refused from error
        # By its extra information, since the stream of an upgraded connection wraps it.
        response.extensions["network_stream"].get_extra_info("bounded_stream").is_in_head = False
        encodings = [value.strip().lower() for name, value in response.headers if name.lower() == b"content-encoding"]
        encodings = [encoding for encoding in encodings if encoding not in (b"", b"identity")]
        if encodings not in ([], [b"gzip"], [b"x-gzip"]):
            await response.aclose()
            text = clean_text(b", ".join(encodings)[:100].decode("latin-1"))
            raise library.DecodingError(f"the body is encoded as {text!r}, and only gzip, once, was asked for")
        body = _body_type(library)(response, library, is_gzip=bool(encodings), max_bytes=self._max_bytes, end=end)
        removed = (b"content-encoding", b"content-length") if encodings else ()
        return library.Response(
            response.status,
            headers=[field for field in response.headers if field[0].lower() not in removed],
            stream=body,
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections, also of responses that are still being read; called when the client is closed."""
        await self._pool.aclose()


@cache
def _warn_of_proxy(variable: str) -> None:
    """Log once that the proxy in an environment variable is not used."""
    _log.warning(
        "GuardedTransport connects directly, and not through the proxy in %s: a proxy would resolve names itself, "
        "without the check of addresses",
        variable,
    )
