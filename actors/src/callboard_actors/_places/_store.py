"""What users see of a store of shared limits, whichever server has it: its options, checked, and the protocol."""

import hashlib
import os
import re
import threading
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, get_args
from urllib.parse import SplitResult, urlsplit

from callboard import Limit
from callboard.limits import Wanted
from callboard_actors._places._desk import Desk, Terms
from callboard_actors._places._line import Line
from callboard_actors._places._share import Away, Share
from callboard_actors._places._stay import HeldStay

_SHORTEST: Final = 0.001
_LONGEST: Final = 30 * 86_400.0
"""Seconds that a window, a lease or patience may have: servers count them in whole micro- and milliseconds."""
_MOST: Final = 1_000_000
_NAME: Final = re.compile(r"[\w.@+-]{1,200}")
_NAME_RULE: Final = "1 to 200 letters, digits and . @ + - _"


class Store:
    """A store of shared limits: one desk in each process that asks it.

    Args:
        whose: the class that a user has written, for errors.
        where: the server, without a password.
        line: makes a connection to it.
        name: of the limit, if all that have this store are one.
        lease: seconds.
        away: what becomes of calls while the server is away.
        patience: seconds.
        processes: how many share a limit while the server is away.
    """

    def __init__(
        self,
        whose: str,
        where: str,
        line: Callable[[], Line],
        *,
        name: str | None,
        lease: float,
        away: Away,
        patience: float,
        processes: int | None,
    ) -> None:
        _check(whose, name=name, lease=lease, away=away, patience=patience, processes=processes)
        self._whose = whose
        self._name = name
        self._share = Share(processes or 1)
        self._is_local = away == "local"
        self._line = line
        self._terms = Terms(where=where, lease=lease, away=away, patience=patience, share=self._share)
        self._lock = threading.Lock()
        self._current: Desk | None = None

    def check(self, limit: Limit, /) -> None:
        """Raise ValueError for a limit that cannot be kept here."""
        counts = {"concurrency": limit.concurrency, "queue": limit.queue}
        if limit.rate is not None:
            counts["rate"] = limit.rate.calls
            if not _SHORTEST <= limit.rate.per <= _LONGEST:
                raise ValueError(f"{limit.rate!r}: a shared window has {_SHORTEST:g} to {_LONGEST:g} seconds")
        for option, count in counts.items():
            if count is not None and count > _MOST:
                raise ValueError(f"a shared limit counts up to {_MOST:,}, got {option}={count!r}")
        if self._is_local:
            self._share.check(limit)

    def ask(self, wanted: Wanted, on_answer: Callable[[], object], /) -> HeldStay:
        """Ask for a place, and never wait; from any thread."""
        name = self._name or _storable(wanted.name)
        return self._desk().ask(f"{name}/{wanted.key}" if wanted.key else name, wanted, on_answer)

    def close(self) -> None:
        """Give the connection up, until somebody asks again; waits at most a second for the server to hear it."""
        with self._lock:
            desk, self._current = self._current, None
        if desk is not None:
            desk.close()

    def _desk(self) -> Desk:
        with self._lock:
            desk = self._current
            if desk is None or desk.pid != os.getpid():  # after a fork the child has the object, but not the thread
                desk = self._current = Desk(self._line, self._terms)
                weakref.finalize(self, desk.dismiss).atexit = False
            return desk

    def __getstate__(self) -> dict[str, Any]:
        """What it was made with; a copy has a desk of its own, and is one more process to the server."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_current")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _current=None)

    def __repr__(self) -> str:
        return f"{self._whose}({self._terms.where!r})"


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
    """Raise ValueError for what cannot stand before the name of a limit."""
    if not _is_name(prefix):
        raise ValueError(f"{whose}(prefix=...) is {_NAME_RULE}, got {prefix!r}")


def needs(whose: str, package: str, *, extra: str) -> None:
    """Raise ImportError for a package that is not installed; says how to install it."""
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f"{whose} needs {package}: pip install 'callboard-actors[{extra}]'") from error


def _is_name(value: object) -> bool:
    """Whether it can be part of a key: without what separates keys, and short enough for any server."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _storable(name: str) -> str:
    """A name that somebody else has chosen, such as that of a tool, as every server takes it."""
    if len(name) <= 200 and name.isprintable() and name.isascii():
        return name
    return f"sha256:{hashlib.sha256(name.encode(errors='backslashreplace')).hexdigest()}"


def _check(whose: str, *, name: object, lease: object, away: object, patience: object, processes: object) -> None:
    if name is not None and not _is_name(name):
        raise ValueError(f"{whose}(name=...) is {_NAME_RULE}, got {name!r}")
    for option, value, least in (("lease", lease, 0.1), ("patience", patience, 0.0)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{whose}({option}=...) is a number of seconds, got {value!r}")
        if not least <= value <= _LONGEST:
            raise ValueError(f"{whose}({option}=...) is {least:g} to {_LONGEST:g} seconds, got {value!r}")
    if away not in get_args(Away):
        raise ValueError(f"{whose}(away=...) is one of {get_args(Away)}, got {away!r}")
    if (away == "local") != (processes is not None):
        raise ValueError(
            f"{whose}(away='local', processes=...) go together: while the server is away, each of so many processes "
            f"has its share; got away={away!r}, processes={processes!r}"
        )
    if processes is not None and (isinstance(processes, bool) or not isinstance(processes, int) or processes < 1):
        raise ValueError(f"{whose}(processes=...) is a whole number from 1, got {processes!r}")
