"""Addresses of workers as `host:port`."""

import ipaddress
from typing import NamedTuple


class Address(NamedTuple):
    """Host and port of a worker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """`True` if connections to this address stay on this machine."""
        # Of names only this one: any other could resolve to another machine when the connection is made.
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def address(text: str) -> Address:
    """Parse `host:port`, or `[host]:port` for IPv6; raise `ValueError` or `TypeError` for anything else."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no address of a worker; write 'host:port'")
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ValueError(f"{text!r} is no address of a worker; write 'host:port', such as '10.0.0.7:7000'")
    return Address(bare, int(port))
