"""Exit of a worker process that ends by itself."""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def end_after(work: Callable[[], None]) -> NoReturn:
    """Run the work of this process and exit with the interpreter's exit codes, but without its finalization."""
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
        # No finalization: `atexit` handlers and other cleanup inherited by a fork belong to the zygote.
        os._exit(code)


def exit_code(end: SystemExit) -> int:
    """Return the exit code of a `SystemExit`, by the interpreter's rules."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    sys.stderr.write(f"{end.code}\n")  # as the interpreter does
    return 1


def flush() -> None:
    """Write buffered output, if that is still possible."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # user code may have closed or replaced the stream
            stream.flush()
