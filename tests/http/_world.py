"""Servers, sockets and resolvers for the tests of HTTP."""

import itertools
import json
import socket
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import httpx
import httpx2
import pytest

from callboard_actors.http import GuardedTransport

ROOT = Path(__file__).parents[2]
WAIT = 30
LOOPBACK = ["127.0.0.1"]
BOTH_LIBRARIES = pytest.mark.parametrize("library", [httpx2, httpx], ids=["httpx2", "httpx"])

_numbers = itertools.count()


class Site:
    """Web server and the requests that it received."""

    def __init__(self, origin: str) -> None:
        self.origin = origin

    @property
    def port(self) -> int:
        return urlsplit(self.origin).port

    def url(self, path: str = "/page", **query: object) -> str:
        return f"{self.origin}{path}{'?' if query else ''}{urlencode(query)}"

    def case(self) -> str:
        """Return a name that no other test uses."""
        return f"case-{next(_numbers)}"

    def notes_of(self, case: str) -> dict:
        with urllib.request.urlopen(self.url("/seen", case=case), timeout=WAIT) as answer:
            return json.load(answer)

    def requests(self, case: str) -> list[dict]:
        return self.notes_of(case)["requests"]


class Trap:
    """Socket that listens on loopback to detect connections.

    Args:
        address: IP address to listen on.
        port: port to listen on; 0 for any free one.
    """

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    @property
    def accepted(self) -> int:
        """Return the number of connections. The kernel completes them even if no code accepts them."""
        count = 0
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return count
            connection.close()
            count += 1


class Names:
    """Fake resolver: each name has a list of answers, of which the last one repeats."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = {name.replace("_", "."): list(address_lists) for name, address_lists in answers.items()}
        self.lookups: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.lookups.append(host)
        address_lists = self._answers[host]
        return address_lists.pop(0) if len(address_lists) > 1 else address_lists[0]


def client_of(library: ModuleType, *, follow_redirects: bool = True, **options: Any) -> Any:
    """Return a client of httpx2 or httpx with a guarded transport."""
    return library.AsyncClient(transport=GuardedTransport(**options), follow_redirects=follow_redirects)
