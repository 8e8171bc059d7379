"""Test of whether a host is this machine, which no other machine can reach by that host."""

from callboard.extend import literal


def is_loopback(host: str) -> bool:
    """Return whether a host (a name or an address) can be reached only from this machine."""
    address = literal(host.strip("[]"))
    return host == "localhost" if address is None else address.is_loopback
