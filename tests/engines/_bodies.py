"""Functions that the engine tests run in workers. A worker imports them by name, so all are at module level."""

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import anyio

from callboard import progress, remaining

_numbers: list[int] = []


def add(one: int, other: int = 1) -> int:
    """Return the sum of two numbers: the simplest function for an engine."""
    return one + other


async def add_later(one: int, other: int = 1) -> int:
    """Return the sum of two numbers after a short wait."""
    await anyio.sleep(0.001)
    return one + other


def fail(text: str) -> NoReturn:
    """Raise a ValueError with this text, which must reach the caller unchanged."""
    raise ValueError(text)


def unsendable() -> object:
    """Return a value that no engine can send."""
    return threading.Lock()


async def goes_on(path: str) -> None:
    """Write the process id to a file, then keep writing to the file until cancelled."""
    _note(path, f"{os.getpid()}\n")
    while True:
        _note(path)
        await anyio.sleep(0.005)


def goes_on_in_a_thread(path: str) -> None:
    """Write the process id to a file, then keep writing to the file and ignore cancellation."""
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
    """Report progress, write a log record, and return the seconds left until the deadline."""
    progress("half", done=1, total=2)
    logging.getLogger("callboard.testing.engine").warning("from elsewhere")
    return remaining()


async def keep(number: int) -> list[int]:
    """Store a number in this worker process, and return all numbers stored there."""
    _numbers.append(number)
    return list(_numbers)


async def forget() -> None:
    """Delete the numbers that `keep` has stored in this worker process."""
    _numbers.clear()


async def where() -> Any:
    """Return the id of the process in which this function runs."""
    return os.getpid()


async def meet(path: str, count: int) -> int:
    """Write to a file, wait until `count` calls have written to it (so all run at once), and return their number."""
    _note(path)
    while (arrivals := len(_text(path))) < count:
        await anyio.sleep(0.005)
    return arrivals
