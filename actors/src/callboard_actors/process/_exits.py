"""How a worker process ends in its own time."""

import sys
from contextlib import suppress


def exit_code(end: SystemExit) -> int:
    """With which code a process ends, as the interpreter has it."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    sys.stderr.write(f"{end.code}\n")  # as the interpreter does
    return 1


def flush() -> None:
    """Have everything written that was printed, if that is still possible."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # whatever a body has put there, or closed
            stream.flush()
