"""What users see of a server that processes share: its options, checked, and one clerk in each process that asks it."""

import os
import re
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from callboard_actors._clerk import Clerk

LONGEST: Final = 30 * 86_400.0
"""Seconds that a lease or patience may have: servers count them in whole micro- and milliseconds."""
NAME_RULE: Final = "1 to 200 letters, digits and . @ + - _"
_NAME: Final = re.compile(r"[\w.@+-]{1,200}")

C = TypeVar("C", bound=Clerk[Any])


class ServerStore(ABC, Generic[C]):
    """A store on a server: one clerk in each process that asks it.

    Args:
        whose: the class that a user has written, for errors.
        where: the server, without a password.
    """

    def __init__(self, whose: str, where: str) -> None:
        self._whose = whose
        self._where = where
        self._lock = threading.Lock()
        self._current: C | None = None

    def close(self) -> None:
        """Give the connection up, until somebody asks again; waits at most a second for the server to hear it."""
        with self._lock:
            clerk, self._current = self._current, None
        if clerk is not None:
            clerk.close()

    @abstractmethod
    def _new_clerk(self) -> C:
        """Make a clerk for this process; called with the lock held."""

    def _clerk(self) -> C:
        with self._lock:
            clerk = self._current
            if clerk is None or clerk.pid != os.getpid():  # after a fork the child has the object, but not the thread
                clerk = self._current = self._new_clerk()
                weakref.finalize(self, clerk.dismiss).atexit = False
            return clerk

    def __getstate__(self) -> dict[str, Any]:
        """What it was made with; a copy has a clerk of its own, and is one more process to the server."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_current")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _current=None)

    def __repr__(self) -> str:
        return f"{self._whose}({self._where!r})"


def split_url(whose: str, url: object, remedy: str) -> SplitResult:
    """The parts of a URL; no error shows any, for what looks like a host may be half a password.

    Raises:
        ValueError: for what is no URL, and for a password that ends too early because it is not quoted.
        TypeError: for what is no text.
    """
    if not isinstance(url, str):
        raise TypeError(f"{whose}(url) is a URL, got {url!r}; {remedy}")
    try:
        parts = urlsplit(url)
        numbers = [host.rpartition("]")[2].partition(":")[2] for host in parts.netloc.rpartition("@")[2].split(",")]
    except ValueError:
        raise ValueError(f"{whose}(url) is no URL; {remedy}") from None
    is_cut = parts.fragment or (parts.netloc and "@" not in parts.netloc and "@" in parts.path)
    if is_cut or not all(number.isdecimal() for number in numbers if number):
        raise ValueError(
            f"{whose}(url): after the host comes a port, which is a number. "
            "If there is a '/', '?', '#' or '%' in the password, quote it: urllib.parse.quote(password, safe='')"
        )
    return parts


def check_prefix(whose: str, prefix: object) -> None:
    """Raise ValueError for what cannot stand before the names of what is kept."""
    if not is_name(prefix):
        raise ValueError(f"{whose}(prefix=...) is {NAME_RULE}, got {prefix!r}")


def is_name(value: object) -> bool:
    """Whether it can be part of a key: without what separates keys, and short enough for any server."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def check_seconds(whose: str, options: Iterable[tuple[str, object, float]], longest: float = LONGEST) -> None:
    """Check that options are numbers of seconds, and in range.

    Args:
        whose: the class that a user has written, for errors.
        options: the name of each, its value, and the least that it may be.
        longest: the most that any of them may be.

    Raises:
        ValueError: for one out of range.
        TypeError: for what is no number.
    """
    for option, value, least in options:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{whose}({option}=...) is a number of seconds, got {value!r}")
        if not least <= value <= longest:
            raise ValueError(f"{whose}({option}=...) is {least:g} to {longest:g} seconds, got {value!r}")
