"""Tools and an actor that run on the cluster."""

import os
import re
import time
from pathlib import Path
from typing import ClassVar

import anyio

from callboard import Actor, handler, progress


def note_once(folder: str, number: int) -> str:
    """Do what must not be done twice: write a number down."""
    return _note(folder, number)


def note_again(folder: str, number: int) -> str:
    """Do what may be done twice: write a number down."""
    return _note(folder, number)


def _note(folder: str, number: int) -> str:
    with Path(folder, str(os.getpid())).open("a") as file:
        file.write(f"{number}\n")
    time.sleep(0.02)
    return f"noted {number}"


def spin(folder: str) -> str:
    """Never look up, and never end."""
    Path(folder, "pid").write_text(str(os.getpid()))
    while True:
        pass


def hold(folder: str) -> str:
    """Hold the interpreter in C, which lets no other thread run, for minutes."""
    Path(folder, "pid").write_text(str(os.getpid()))
    re.fullmatch(r"(a|aa)+b", "a" * 60)
    return "matched"


def crunch(rows: int) -> str:
    """Compute something; says where."""
    return f"{2 * rows} {os.getpid()}"


async def pause(seconds: float) -> int:
    """Wait on the cluster; says where."""
    await anyio.sleep(seconds)
    return os.getpid()


async def note_and_wait(folder: str, number: int) -> str:
    """Write a number down beside other bodies in the same process."""
    with Path(folder, str(os.getpid())).open("a") as file:
        file.write(f"{number}\n")
    await anyio.sleep(0.05)
    return f"noted {number}"


async def block(folder: str) -> str:
    """Hold the event loop, and all bodies that share it, for minutes."""
    Path(folder, "pid").write_text(str(os.getpid()))
    time.sleep(600)
    return "awake"


class _Neighbours:
    """Running bodies of this process, by kind."""

    running: ClassVar[list[str]] = []
    highest: ClassVar[int] = 0


def alone(seconds: float) -> str:
    """Say which bodies run in this process beside this sync one."""
    _Neighbours.running.append("sync")
    time.sleep(seconds)
    neighbours = sorted(_Neighbours.running)
    _Neighbours.running.remove("sync")
    return ",".join(neighbours)


async def together(seconds: float) -> str:
    """Say which kinds of bodies run in this process beside this async one, and how many at most."""
    _Neighbours.running.append("async")
    _Neighbours.highest = max(_Neighbours.highest, len(_Neighbours.running))
    await anyio.sleep(seconds)
    kinds = ",".join(sorted(set(_Neighbours.running)))
    _Neighbours.running.remove("async")
    return f"{kinds} {_Neighbours.highest}"


async def step(times: int, seconds: float) -> str:
    """Tell of progress, slowly."""
    for number in range(times):
        await anyio.sleep(seconds)
        progress("on the way", done=number + 1, total=times)
    return f"{times} steps"


class Counter(Actor):
    """Counting actor that lives in a Ray actor."""

    def __init__(self) -> None:
        self.count = 0

    @handler
    async def add(self, number: int) -> tuple[int, int]:
        """Count further; says how far, and where."""
        self.count += number
        return self.count, os.getpid()
