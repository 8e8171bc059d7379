"""Bodies that an engine has to stand; they are found by their names wherever they run."""

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import anyio

from callboard._calls._progress import progress
from callboard._loops._deadline import remaining

_kept: list[int] = []


def add(one: int, other: int = 1) -> int:
    """Returns a sum: the plainest body that there is."""
    return one + other


async def add_later(one: int, other: int = 1) -> int:
    """Returns a sum after a moment, so that the body has waited once."""
    await anyio.sleep(0.001)
    return one + other


def fail(text: str) -> NoReturn:
    """Raises a ValueError with this text, which has to come back as it is."""
    raise ValueError(text)


def unsendable() -> object:
    """Return what no engine can send."""
    return threading.Lock()


async def goes_on(path: str) -> None:
    """Write to a file, first its process id, until somebody ends it."""
    _note(path, f"{os.getpid()}\n")
    while True:
        _note(path)
        await anyio.sleep(0.005)


def goes_on_in_a_thread(path: str) -> None:
    """Write to a file, first its process id, without ever looking up."""
    _note(path, f"{os.getpid()}\n")
    while True:
        _note(path)
        time.sleep(0.005)


def _note(path: str, text: str = "x") -> None:
    with Path(path).open("a") as file:
        file.write(text)


def _text(path: str) -> str:
    return Path(path).read_text()


def tell() -> float:
    """Tell of progress, write to a log; returns the seconds that are left."""
    progress("half", done=1, total=2)
    logging.getLogger("callboard.testing.engine").warning("from elsewhere")
    return remaining()


async def keep(number: int) -> list[int]:
    """Keep a number; returns all that are kept."""
    _kept.append(number)
    return list(_kept)


async def forget() -> None:
    """Drop all that `keep` has kept in this process."""
    _kept.clear()


async def where() -> Any:
    """Returns the id of the process in which the body runs."""
    return os.getpid()


async def meet(path: str, count: int) -> int:
    """Wait until so many run at once."""
    _note(path)
    while (found := len(_text(path))) < count:
        await anyio.sleep(0.005)
    return found
