"""Resolution of host names: the type of a resolver, and the system's resolver."""

import socket
from collections.abc import Awaitable, Callable, Collection

import anyio

Resolver = Callable[[str, int], Awaitable[Collection[str]]]
"""Async function from a host name and a port to IP addresses, as texts."""


async def system_resolver(host: str, port: int) -> Collection[str]:
    """Return the IP addresses of a host name from the operating system, in the order to try them.

    Args:
        host: the domain name.
        port: the port to connect to.

    Raises:
        OSError: if the name does not resolve.
    """
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A dict removes duplicates and keeps the system's order of preference (RFC 6724).
    return dict.fromkeys(str(entry[4][0]) for entry in found)
