"""How a worker process ends in its own time."""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def end_after(work: Callable[[], None]) -> NoReturn:
    """Do the work of this process and end with it, as the interpreter would, but at once."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = exit_code(end)
    except BaseException:
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def exit_code(end: SystemExit) -> int:
    """The code with which a process ends, by the interpreter's rules."""
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
