"""Host names of the pages, which lead to addresses of loopback here."""

import os
import socket
from itertools import count
from typing import Any

import pytest

_numbers = count()


def own_address() -> str:
    """Return an address of loopback that no other process uses, so that the port on the page is free there."""
    number = os.getpid() << 2 | next(_numbers) % 4
    return f"127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def resolve(patch: pytest.MonkeyPatch, addresses: dict[str, str]) -> None:
    """Let these host names have these addresses in this process."""
    real = socket.getaddrinfo

    def look_up(host: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return real(addresses.get(name, host), *args, **options)

    patch.setattr(socket, "getaddrinfo", look_up)
