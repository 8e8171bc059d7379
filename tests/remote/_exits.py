"""Functions that end the process in which they run, served to other machines."""

import os
import signal
import sys

import anyio


def leave(code: int) -> None:
    """End the process by `sys.exit`, as scripts do."""
    sys.exit(code)


async def leave_later(code: int) -> None:
    """End the process, after a moment."""
    await anyio.sleep(0.001)
    sys.exit(code)


def die() -> None:
    """End the process by SIGKILL, as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def stay() -> str:
    """Return without ending the process."""
    return "here"
