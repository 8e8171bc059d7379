"""Addresses of workers, `host:port`, and which of them are on this machine."""

import ipaddress
from typing import NamedTuple


class Address(NamedTuple):
    """The host and the port at which a worker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can hear what is said there."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def address(text: str) -> Address:
    """Understand `host:port`, or `[host]:port` for IPv6.

    Raises:
        ValueError: it is none.
        TypeError: it is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no address of a worker; write 'host:port'")
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ValueError(f"{text!r} is no address of a worker; write 'host:port', such as '10.0.0.7:7000'")
    return Address(bare, int(port))
