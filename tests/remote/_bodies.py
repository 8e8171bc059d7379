"""Functions and actors that are served to other machines."""

import os
import time
from pathlib import Path
from typing import Any

import anyio

from callboard import Actor, handler


def add(one: int, other: int = 1) -> int:
    """A sum."""
    return one + other


async def add_later(one: int, other: int = 1) -> int:
    """Return the sum after a moment."""
    await anyio.sleep(0.001)
    return one + other


def where() -> int:
    """Return the process id."""
    return os.getpid()


def parent() -> list[int]:
    """The numbers of the processes above."""
    found, pid = [], os.getppid()
    while pid > 1:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def note_and_sleep(path: str, seconds: float) -> str:
    """Write a line, the process id, and sleep; write another one."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(seconds)
    with Path(path).open("a") as file:
        file.write("done\n")
    return "done"


async def note_id(path: str, ident: str, seconds: float = 0.0) -> str:
    """Write a line to a file, which shows that a call has had its effect."""
    await anyio.sleep(seconds)
    with Path(path).open("a") as file:
        file.write(f"{ident}\n")
    return ident


def big(size: int) -> bytes:
    """Return so many bytes."""
    return b"x" * size


def length(value: Any) -> int:
    """Return the number of bytes."""
    return len(value)


class Notebook(Actor):
    """Actor that keeps lines."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    @handler
    async def append(self, line: str) -> int:
        """Keep a line; returns how many there are."""
        self._lines.append(line)
        return len(self._lines)

    @handler
    async def pid(self) -> int:
        """The number of the process where it lives."""
        return os.getpid()


class _Wherever:
    """Object that is built by a function where it is unpickled, as any pickle may demand."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.getpid, ()


def wherever() -> object:
    """Return the process id of whoever reads the result."""
    return _Wherever()
