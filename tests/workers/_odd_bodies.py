"""Bodies that end in odd ways; importable by their names, as those of `_bodies`."""

import os
import signal
import time
from pathlib import Path

from ._bodies import say_where


async def block_until(folder: str, go: str) -> str:
    """Keep the event loop busy until a file is there."""
    say_where(folder)
    while not Path(go).exists():
        time.sleep(0.001)
    return "went on"


async def leave_a_mark(path: str) -> None:
    Path(path).touch()


async def interrupt_oneself() -> None:
    """As Ctrl+C does where code runs that was given as text."""
    import anyio

    os.kill(os.getpid(), signal.SIGINT)
    await anyio.sleep(600)


def lose_an_inner_worker(path: str) -> None:
    """As a body does that has a pool of its own."""
    from callboard_actors.process import WorkerDiedError

    with Path(path).open("a") as file:
        file.write("x")
    raise WorkerDiedError("inner", "its worker is gone", begun=False)
