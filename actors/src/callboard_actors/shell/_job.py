"""Command as its shell knows it: its state, and the text about it for a model."""

import signal
from dataclasses import dataclass, field

import anyio

from callboard import EngineError
from callboard_actors.process import WorkerDiedError
from callboard_actors.shell._command import Ending
from callboard_actors.shell._spool import SpoolReader

_TITLE = 60


@dataclass(slots=True, eq=False)
class Job:
    """Command from its start until its result was read."""

    number: int
    command: str
    spool: SpoolReader
    began: float
    timeout: float | None = None
    ending: Ending | None = None
    failure: EngineError | None = None
    """Reason why its end is unknown."""
    is_stopped: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)

    @property
    def title(self) -> str:
        """The command as one short line."""
        line = " ".join(self.command.split())
        return line if len(line) <= _TITLE else f"{line[:_TITLE]}..."

    def state(self, now: float) -> str:
        """Return the state of the command as a sentence."""
        if not self.ended.is_set():
            return f"running for {now - self.began:.1f} s."
        if self.is_stopped:
            return "stopped."
        if self.ending is None:
            assert self.failure is not None
            return told_as_lost(self.failure)
        return told(self.ending, self.timeout)


def told(ending: Ending, timeout: float | None) -> str:
    """Return a sentence about the end of a command."""
    code, seconds = ending["exitcode"], f"{ending['seconds']:.1f} s"
    if code is None:
        return f"not started: {ending['error']}."
    if ending["is_late"]:
        return f"ended by its timeout of {round(timeout or 0.0, 1):g} s."
    end = f"exit code {code} after {seconds}." if code >= 0 else f"killed by {_signal_name(-code)} after {seconds}."
    if left := ending["left_running"]:
        what = "A process that it left running was" if left == 1 else f"{left} processes that it left running were"
        end += f" {what} ended with it; what has to go on is for start_job(command)."
    return end


def told_as_lost(failure: EngineError) -> str:
    """Return sentences for a command with an unknown end, and the advice."""
    if failure.ended == "unavailable":
        return f"not started: {failure.reason}. It had no effect, and can be run again."
    is_known = not isinstance(failure, WorkerDiedError) or failure.exitcode is not None
    left = "all that the command had started was ended with it" if is_known else "what it had started may still run"
    return (
        f"lost: {failure.reason}, and {left}. How far it came is unknown: "
        "look at what it was to change before it is run again."
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def with_output(sentence: str, output: str) -> str:
    """Return the text about a command for a model."""
    sentence = sentence[:1].upper() + sentence[1:]
    return f"{sentence}\n{output}" if output.strip() else f"{sentence} No output."
