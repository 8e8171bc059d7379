"""Functions that end in unusual ways; importable by name, like those of `_bodies`."""

import errno
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from ._bodies import say_where


async def block_until(folder: str, go: str) -> str:
    """Block the event loop until a file exists."""
    say_where(folder)
    while not Path(go).exists():
        time.sleep(0.001)
    return "went on"


async def leave_a_mark(path: str) -> None:
    Path(path).touch()


async def interrupt_oneself() -> None:
    """Interrupt the own process, as Ctrl+C does while code runs that was given as text."""
    import anyio

    os.kill(os.getpid(), signal.SIGINT)
    await anyio.sleep(600)


def lose_an_inner_worker(path: str) -> None:
    """Lose a worker of a pool that the function itself has opened."""
    from callboard_actors.process import WorkerDiedError

    with Path(path).open("a") as file:
        file.write("x")
    raise WorkerDiedError("inner", "its worker is gone", begun=False)


class StatusError(Exception):
    """Exception whose constructor takes more than its text, like those of HTTP clients."""

    def __init__(self, message: str, *, status: int, held: object = None) -> None:
        super().__init__(message)
        self.status = status
        self.held = held


class PlaceError(OSError):
    """Exception whose base class keeps state outside of `__dict__`."""

    def __init__(self, number: int, *, place: str) -> None:
        super().__init__(number, "nothing there", place)
        self.place = place


class PretenderError(Exception):
    """Exception whose pickle is read as an object that is no exception."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("1",)


def raise_status(held: str) -> None:
    values = {"nothing": None, "a lock": threading.Lock(), "an error": StatusError("inner", status=500)}
    raise StatusError("no service", status=503, held=values[held])


def raise_itself_again() -> None:
    error = StatusError("no service", status=503)
    error.held = [error]
    raise error


def raise_place() -> None:
    raise PlaceError(errno.ENOENT, place="/nowhere")


def raise_pretender() -> None:
    raise PretenderError("indeed")


def raise_with_a_lock() -> None:
    raise RuntimeError("held", threading.Lock())


def raise_in_groups(depth: int) -> None:
    error: Exception = StatusError("no service", status=503)
    for level in range(depth):
        error = ExceptionGroup(f"level {level}", [ValueError(level), error])
    raise error


def raise_what_nobody_finds() -> None:
    class LocalError(Exception):
        pass

    raise LocalError("local\0text")


async def log_there(text: str) -> str:
    logging.getLogger("odd").warning(text)
    return text


def close_stdout() -> str:
    sys.stdout.close()
    return "closed"


async def close_stdout_there() -> str:
    return close_stdout()


def take_stdout_away() -> str:
    sys.stdout = None  # type: ignore[assignment]
    return "taken"


async def print_there(text: str) -> str:
    print(text)
    return text
