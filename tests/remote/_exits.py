"""Bodies that end the process they run in, served to other machines."""

import os
import signal
import sys

import anyio


def leave(code: int) -> None:
    """End the process, as scripts do."""
    sys.exit(code)


async def leave_later(code: int) -> None:
    """End the process, after a moment."""
    await anyio.sleep(0.001)
    sys.exit(code)


def die() -> None:
    """End the process as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def stay() -> str:
    """End nothing."""
    return "here"
