"""Base of stores on a server shared by processes: checked options, and one background client in each process."""

import os
import re
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from callboard_actors._server._client import BackgroundClient
from callboard_actors._util._options import needs

NAME_RULE: Final = "1 to 200 letters, digits and . @ + - _"
_NAME: Final = re.compile(r"[\w.@+-]{1,200}")

C = TypeVar("C", bound=BackgroundClient[Any])


class ServerStore(ABC):
    """Store on a server, with a checked URL and prefix. Subclasses name the server and the connections to it."""

    server: str
    schemes: tuple[str, ...]
    examples: str
    package: str
    extra: str
    needs_host = True
    transports: str
    """Name of the module with the connection classes and the URL check; it imports the server's driver, an extra."""
    transport: str
    """Name of the connection class of this kind of store, in the module `transports`."""

    def __init__(self, url: str, prefix: str) -> None:
        self._whose = type(self).__name__
        self._where = self._check_url(url)
        check_prefix(self._whose, prefix)
        self._url = url
        self._prefix = prefix
        self._settings: tuple[object, ...] = ()
        """Arguments for the constructor of a connection, after the URL, the address and the prefix."""

    def _check_url(self, url: object) -> str:
        """Check the URL, and return it without its password."""
        # Raise an error if the URL cannot be used, or if the extra with the server's driver is not installed.
        remedy = f"give it one such as {self.examples}"
        parts = split_url(self._whose, url, remedy)
        host = parts.netloc.rpartition("@")[2]
        if parts.scheme not in self.schemes or (self.needs_host and not host and not parts.path.strip("/")):
            shown = f"{parts.scheme}://..." if parts.scheme else parts.path
            raise ValueError(f"{self._whose}({shown!r}) is no URL of {self.server}; {remedy}")
        needs(f"{self._whose}(...)", self.package, extra=self.extra)
        self._check_driver(str(url))
        return f"{parts.scheme}://{host}{parts.path}"

    def _check_driver(self, url: str) -> None:
        """Raise ValueError for a URL that the server's driver does not accept."""
        import_module(self.transports).check_url(self._whose, url)

    def _line(self) -> Callable[[], Any]:
        """Return a function that makes a connection to the server. The function does not refer to this store."""
        connection = getattr(import_module(self.transports), self.transport)
        return partial(connection, self._url, self._where, self._prefix, *self._settings)

    def __repr__(self) -> str:
        return f"{self._whose}({self._where!r})"


class ClientStore(ServerStore, Generic[C]):
    """Store with one background client in each process that uses it."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(url, prefix)
        # Any thread may be the first to use the store, so `_current` is read and replaced under the lock only.
        self._lock = threading.Lock()
        self._current: C | None = None

    def close(self) -> None:
        """Close the connection until the store is used again; waits at most a second for the final messages."""
        with self._lock:
            client, self._current = self._current, None
        if client is not None:
            # Outside the lock: other threads may use the store meanwhile, with a new client.
            client.close()

    @abstractmethod
    def _new_client(self) -> C:
        """Make a client for this process; called with the lock held. The client must not refer to this store."""

    def _client(self) -> C:
        with self._lock:
            client = self._current
            if client is None or client.pid != os.getpid():  # after a fork the child has the object, but not the thread
                client = self._current = self._new_client()
                # Stops the thread when the store is garbage. At exit, `_close_all` waits for the final messages.
                weakref.finalize(self, client.dismiss).atexit = False
            return client

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, without the client: a copy makes its own, and the server counts both clients."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_current")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _current=None)


def split_url(whose: str, url: object, remedy: str) -> SplitResult:
    """Split a URL into its parts; raise ValueError or TypeError if it is not valid, without quoting any part of it."""
    if not isinstance(url, str):
        raise TypeError(f"{whose}(url) is a URL, got {url!r}; {remedy}")
    try:
        parts = urlsplit(url)
        # PostgreSQL takes several hosts, separated by commas; an IPv6 host has colons within brackets.
        numbers = [host.rpartition("]")[2].partition(":")[2] for host in parts.netloc.rpartition("@")[2].split(",")]
    except ValueError:
        raise ValueError(f"{whose}(url) is no URL; {remedy}") from None
    # An unquoted '/', '?' or '#' in a password ends the host early: the rest lands in the path, query or fragment.
    is_cut = parts.fragment or (parts.netloc and "@" not in parts.netloc and "@" in parts.path)
    if is_cut or not all(number.isdecimal() for number in numbers if number):
        raise ValueError(
            f"{whose}(url): after the host comes a port, which is a number. "
            "If there is a '/', '?', '#' or '%' in the password, quote it: urllib.parse.quote(password, safe='')"
        )
    return parts


def check_prefix(whose: str, prefix: object) -> None:
    """Raise ValueError for a prefix that cannot be part of the names under which a store keeps its data."""
    if not is_name(prefix):
        raise ValueError(f"{whose}(prefix=...) is {NAME_RULE}, got {prefix!r}")


def check_away(whose: str, away: object, policies: tuple[object, ...]) -> None:
    """Raise ValueError if `away` is not one of the policies for calls during an outage."""
    if away not in policies:
        raise ValueError(f"{whose}(away=...) is one of {policies}, got {away!r}")


def is_name(value: object) -> bool:
    """Return whether a value is a text that every server accepts as part of a key: short, and without separators."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
