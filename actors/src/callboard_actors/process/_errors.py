"""How a call in a worker can end without a result."""

import signal
from typing import Final, Literal

from callboard import CallboardError
from callboard.engines import EngineError

TO_TELL: Final = 0.5
"""Seconds for the zygote to say that a worker has ended whose socket is closed; else it has closed it itself."""
_SHOWN = 2_000
"""Characters of the output that a note has; the attribute has all that was kept."""
_OWN_SIGNALS = frozenset(
    {
        signal.SIGALRM,
        signal.SIGXCPU,
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
    }
)
"""By which a process ends because of what runs in it."""


class WorkerDiedError(EngineError):
    """The worker process of a call has ended, and this call with it; others go on.

    `ended` is "unavailable" if the call had not begun, and "unknown" if it had: it may have had its effect. `recurs`
    says that the call itself ended the worker, by a crash, an exit or too much of what is bounded.
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
        super().__init__(tool, call_id, reason, ended=ended, recurs=begun and recurs)
        self.begun = begun
        self.exitcode = exitcode
        """As `multiprocessing` has it: minus the number of the signal, if it was one. `None` if nobody knows."""
        self.pid = pid
        self.output = output
        """The end of what it wrote to stdout and stderr during the call."""
        add_output(self, output)


class ResultLostError(EngineError):
    """A call has finished in its worker and had its effect, but what it returned or raised did not arrive.

    `ended` is "finished".
    """

    def __init__(self, tool: str, reason: str, *, call_id: str | None = None, output: str = "") -> None:
        super().__init__(tool, call_id, reason, ended="finished", recurs=True)
        self.output = output
        add_output(self, output)


class WorkerCallError(CallboardError):
    """A call in a confined worker has raised what is not brought back as itself: only Python's own exceptions are."""

    def __init__(self, tool: str, type_name: str, text: str) -> None:
        self.tool = tool
        self.type_name = type_name
        """What the exception's class was called there."""
        self.text = text
        super().__init__(f"{tool!r} has raised {type_name}: {text}")


def add_output(error: Exception, output: str) -> None:
    """Show with an error what the call has written."""
    if output:
        more = "... " if len(output) > _SHOWN else ""
        error.add_note(f"Its stdout and stderr:\n{more}{output[-_SHOWN:]}")


def is_own_doing(exitcode: int | None) -> bool:
    """Whether a process that ended so was ended by what ran in it, and by nobody else."""
    return exitcode is not None and (exitcode >= 0 or -exitcode in _OWN_SIGNALS)


def end_of(exitcode: int | None, cpu: int | None) -> str:
    """Say how a worker process ended."""
    if exitcode is None:
        return "its worker process was lost with the zygote, its parent"
    if exitcode >= 0:
        return f"its worker process exited with code {exitcode}"
    if cpu is not None and -exitcode == signal.SIGXCPU:
        return f"its worker process was killed by SIGXCPU, for it had used its {cpu} s of processor time"
    name = _signal_name(-exitcode)
    hint = ", which the kernel also does when memory runs out" if -exitcode == signal.SIGKILL else ""
    return f"its worker process was killed by {name}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
