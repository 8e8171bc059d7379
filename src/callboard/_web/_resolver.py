"""How the name of a host becomes addresses: a function that others may replace, and that of the system."""

import socket
from collections.abc import Awaitable, Callable, Collection

import anyio

Resolver = Callable[[str, int], Awaitable[Collection[str]]]
"""From a host name and a port to addresses, as texts."""


async def system_resolver(host: str, port: int) -> Collection[str]:
    """The addresses of a name, as the system knows them, in the order in which they are to be tried.

    Raises:
        OSError: if it has none.
    """
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return dict.fromkeys(str(entry[4][0]) for entry in found)
