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
    """Have everything written that was printed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
