"""How a call in a worker can end without a result.

`ended` tells the outcomes apart: a `WorkerDiedError` has "unavailable" where the call had not begun, and "unknown"
where it had; a `ResultLostError` has "finished".
"""

import signal
from typing import Literal

from callboard import ActorError, CallboardError

_SHOWN = 2_000
"""Characters of the output that a note has; the attribute has all that was kept."""


class WorkerDiedError(ActorError):
    """The worker process of a call has ended, and this call with it; others go on.

    `ended` is "unavailable" if the call had not begun, and "unknown" if it had: it may have had its effect.
    """

    def __init__(
        self, tool: str, reason: str, *, begun: bool, exitcode: int | None, pid: int | None, output: str
    ) -> None:
        self.reason = reason
        self.begun = begun
        self.exitcode = exitcode
        """As `multiprocessing` has it: minus the number of the signal, if it was one. `None` if nobody knows."""
        self.pid = pid
        self.output = output
        """The end of what it wrote to stdout and stderr during the call."""
        self.ended = "unknown" if begun else "unavailable"
        sentence = f"{tool!r} was not started: {reason}."
        if begun:
            sentence = f"{tool!r} had begun when {reason}. Whether it had its effect is unknown."
        super().__init__(tool, None, sentence)
        add_output(self, output)


class ResultLostError(CallboardError):
    """A call has finished in its worker and had its effect, but what it returned or raised did not arrive."""

    ended: Literal["finished"] = "finished"

    def __init__(self, tool: str, reason: str, *, output: str = "") -> None:
        self.tool = tool
        self.reason = reason
        self.output = output
        super().__init__(f"{tool!r} has finished, but its result is lost: {reason}")
        add_output(self, output)

    def __reduce__(self) -> tuple[object, ...]:
        return _lost, (type(self), self.tool, self.reason, self.output)


def _lost(cls: type[ResultLostError], tool: str, reason: str, output: str) -> ResultLostError:
    return cls(tool, reason, output=output)


def add_output(error: Exception, output: str) -> None:
    """Show with an error what the call has written."""
    if output:
        more = "... " if len(output) > _SHOWN else ""
        error.add_note(f"Its stdout and stderr:\n{more}{output[-_SHOWN:]}")


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
