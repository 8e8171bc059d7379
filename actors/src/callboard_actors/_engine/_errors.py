"""Errors of calls in workers, such as a dead worker or a lost result, and texts about how a worker process ended."""

import signal
from typing import Final, Literal

from callboard import CallboardError
from callboard.extend import EngineError

REPORT_TIMEOUT: Final = 0.5
"""Seconds to wait for the zygote's report of a worker's end after its socket was closed.

Without a report in this time, the worker still lives and has closed the socket itself.
"""
_MAX_NOTE_OUTPUT = 2_000
"""Largest number of characters of output in an error's note; the error's attribute `output` may have more."""
_SELF_INFLICTED_SIGNALS = frozenset(
    getattr(signal, name)
    for name in ("SIGALRM", "SIGXCPU", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
    if hasattr(signal, name)  # Windows has three of them, and imports this module for Ray
)
"""Signals that end a process because of its own code. Others are usually sent by other processes."""


class WorkerDiedError(EngineError):
    """Raised if the worker process of a call ended before the call did; calls in other workers continue.

    `ended` is "unavailable" if the call had not begun. It is "unknown" if it had begun, and may have had side effects.
    `recurs` says that the call itself ended the worker, by a crash, an exit or by exceeding a limit.
    """

    def __init__(
        self,
        tool: str,
        reason: str,
        *,
        begun: bool,
        call_id: str | None = None,
        exitcode: int | None = None,
        pid: int | None = None,
        output: str = "",
        recurs: bool = False,
    ) -> None:
        ended: Literal["unknown", "unavailable"] = "unknown" if begun else "unavailable"
        # A call that had not begun cannot be the cause, so a retry in another worker is safe.
        super().__init__(tool, call_id, reason, ended=ended, recurs=begun and recurs)
        self.begun = begun
        self.exitcode = exitcode
        """Exit code, or minus the signal number, as in `multiprocessing`; `None` if unknown."""
        self.pid = pid
        self.output = output
        """Last part of the output that the call wrote to stdout and stderr."""
        add_output_note(self, output)


class ResultLostError(EngineError):
    """Raised if the function of a call has finished in its worker, but its result or exception could not be sent back.

    `ended` is "finished".
    """

    def __init__(self, tool: str, reason: str, *, call_id: str | None = None, output: str = "") -> None:
        super().__init__(tool, call_id, reason, ended="finished", recurs=True)
        self.output = output
        add_output_note(self, output)


class WorkerCallError(CallboardError):
    """Raised if a call in a confined worker raised an exception of a class that is not built into Python.

    Confined workers send no pickles, so only built-in exceptions are raised here as themselves.
    """

    def __init__(self, tool: str, type_name: str, text: str) -> None:
        self.tool = tool
        self.type_name = type_name
        """Qualified name of the exception's class in the worker."""
        self.text = text
        super().__init__(f"{tool!r} has raised {type_name}: {text}")


def add_output_note(error: Exception, output: str) -> None:
    """Add the text that a call has printed to the call's error, as a note."""
    if output:
        ellipsis = "... " if len(output) > _MAX_NOTE_OUTPUT else ""
        error.add_note(f"Its stdout and stderr:\n{ellipsis}{output[-_MAX_NOTE_OUTPUT:]}")


def is_self_inflicted(exitcode: int | None) -> bool:
    """Return whether a process with this exit code was ended by its own code, not by another process."""
    return exitcode is not None and (exitcode >= 0 or -exitcode in _SELF_INFLICTED_SIGNALS)


def describe_end(exitcode: int | None, cpu_seconds: int | None) -> str:
    """Return the part of an error text that explains how a worker process ended."""
    if exitcode is None:
        return "its worker process was lost with the zygote, its parent"
    if exitcode >= 0:
        return f"its worker process exited with code {exitcode}"
    if cpu_seconds is not None and -exitcode == signal.SIGXCPU:
        return f"its worker process was killed by SIGXCPU, for it had used its {cpu_seconds} s of processor time"
    name = signal_name(-exitcode)
    hint = ", which the kernel also does when memory runs out" if -exitcode == signal.SIGKILL else ""
    return f"its worker process was killed by {name}{hint}"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
