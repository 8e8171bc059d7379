"""Resolution of host names, and checks whether a host or an address is public."""

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection
from functools import cache
from importlib.resources import files

import anyio

# Resolution of host names.

Resolver = Callable[[str, int], Awaitable[Collection[str]]]
"""Async function that takes a host name and a port, and returns IP addresses as strings."""


async def system_resolver(host: str, port: int) -> Collection[str]:
    """Resolve a host name by the operating system; return the IP addresses in the order in which to try them.

    Args:
        host: the domain name.
        port: the port to connect to.

    Raises:
        OSError: if the name does not resolve.
    """
    entries = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A dict removes duplicates and keeps the system's order of preference (RFC 6724).
    return dict.fromkeys(str(entry[4][0]) for entry in entries)


# Classification of hosts and addresses.

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
"""IP address of either version."""

_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # IETF protocol assignments; one cloud's metadata service
        "192.88.99.0/24",  # relays of 6to4
        "168.63.129.16/32",  # Azure's internal services, at an address that looks public
        "64:ff9b:1::/48",  # NAT64 within one network (RFC 8215)
        "3fff::/20",  # documentation (RFC 9637); not in the tables of older Python versions
    )
)
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_EMBEDDED_V4 = tuple(
    ipaddress.IPv6Network(network)
    for network in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")  # RFC 4291, 2765, 6052
)


def literal(host: str) -> Address | None:
    """Return the host's IP address, or `None` if the host is a domain name.

    Args:
        host: the host of a URL, an IPv6 address without brackets.
    """
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_public(host: str) -> bool:
    """Return whether a host is a public address, or a name below a top-level domain of the Internet.

    Args:
        host: a host in its normalized form: lower case, ASCII, without a final dot.
    """
    address = literal(host)
    if address is not None:
        return is_public_address(address)
    labels = host.split(".")
    return len(labels) > 1 and labels[-1] in _top_level_domains()


@cache
def _top_level_domains() -> frozenset[str]:
    """Return the endings of public names; a name such as `kubernetes.default.svc` is local to one network."""
    lines = files("callboard._web").joinpath("domains.txt").read_text(encoding="ascii").splitlines()
    return frozenset(domain for domain in lines if not domain.startswith("#"))


def is_public_address(address: Address) -> bool:
    """Return whether an address, and each IPv4 address embedded in it, is global unicast (RFC 3056, 4380, 6052).

    Args:
        address: an IPv4 or IPv6 address.
    """
    if any(address in network for network in _NOT_PUBLIC):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not address.is_reserved
    # A gateway may route such an address to the IPv4 address inside: a private target must not pass in this form.
    if any(address in network for network in _EMBEDDED_V4):
        return is_public_address(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    inside = [address.sixtofour] if address.sixtofour else [*(address.teredo or ())]
    if not all(is_public_address(each) for each in inside):
        return False
    if (int(address) >> 32) & 0xFDFFFFFF == 0x00005EFE:  # ISATAP, RFC 5214
        return False
    return address in _GLOBAL_UNICAST and (bool(inside) or address.is_global)
