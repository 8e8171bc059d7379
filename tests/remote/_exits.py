"""Functions that end the process in which they run, served to other machines."""

import os
import signal
import sys


def leave() -> None:
    """End the process by `sys.exit`, as scripts do."""
    sys.exit(3)


def die() -> None:
    """End the process by SIGKILL, as the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def stay() -> str:
    """Return without ending the process."""
    return "here"
