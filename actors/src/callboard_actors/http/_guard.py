"""Rules for allowed URLs and addresses, and a network backend that connects to allowed addresses only.

A name is resolved once, and the address that was checked is used.
"""

import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import cast
from urllib.parse import urlsplit

import anyio
import httpcore2
import httpx2
from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream

from callboard.extend import Address, Resolver, is_public_address, literal
from callboard.guards import Url
from callboard_actors.http._request import AddressRefusedError

# Rules; they decide, and never wait.

_MOST_NAMED = 20
"""Maximum number of allowed hosts that an error text lists for a model."""
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for URLs that may be requested, and addresses that may be connected to."""

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
        """Return the URL in its normal form; raise ValueError if it is not allowed."""
        # The error quotes no part of the URL.
        written = self.form.check(url)
        assert written is not None
        address = literal(urlsplit(written).hostname or "")
        if address is None or not self._is_in_networks(address):
            self.hosts.check(written)
        return written

    def permits(self, address: Address) -> bool:
        """Return whether a connection to this address is allowed."""
        return self.private or is_public_address(address) or self._is_in_networks(address)

    def _is_in_networks(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def rules_of(allow: Sequence[str] | None, *, private: bool, ports: Collection[int] | None) -> Rules:
    """Return the rules for the options `allow`, `allow_private` and `ports` of `HttpClient`.

    Raise an error if an entry of `allow` is neither a host nor a network.
    """
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
    """Network backend of `httpcore2` that connects only to addresses that the rules permit.

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
    """Options of a connection pool: the TLS context, and the URL of a proxy, or `None` for direct connections."""

    tls: ssl.SSLContext | None
    connections: int
    proxy: str | None


def pool_of(backend: AsyncNetworkBackend, options: PoolOptions) -> httpcore2.AsyncConnectionPool:
    """Return a connection pool that opens its connections through `backend`.

    With a proxy, all connections go to the proxy, whatever its address is.
    """
    context = options.tls or httpx2.create_ssl_context(trust_env=False)
    if options.proxy is None:
        return httpcore2.AsyncConnectionPool(
            context, max_connections=options.connections, keepalive_expiry=5.0, network_backend=backend
        )
    there = httpx2.Proxy(options.proxy)
    return httpcore2.AsyncHTTPProxy(
        str(there.url),
        proxy_auth=there.raw_auth,
        ssl_context=context,
        max_connections=options.connections,
        network_backend=unguarded(),
    )
