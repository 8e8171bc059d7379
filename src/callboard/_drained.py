"""What became of what ran when something was drained, and the exit code that says so."""

from dataclasses import dataclass

ALL_FINISHED, SOME_ENDED, SOME_UNKNOWN = 0, 3, 4
"""Exit codes; 1 and 2 are those of what could not start, and of a wrong command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCall:
    """A call that was ended after its body had begun: nobody knows whether it had its effect.

    Args:
        tool: its name, or the title of the body.
        call_id: of the tool call; `None` where there is none.
        thread_id: of the conversation that it belongs to; `None` where there is none.
    """

    tool: str
    call_id: str | None = None
    thread_id: str | None = None

    def __str__(self) -> str:
        where = "" if self.thread_id is None else f", thread {self.thread_id!r}"
        return f"{self.tool} (call {self.call_id!r}{where})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What became of what ran when something was drained.

    It is about runs of an agent or of a node, messages of actors, and bodies of an engine. Two of them are added.

    Args:
        finished: how many came to their own end: a result or an error.
        ended: how many did not, and were ended.
        unknown: of those, or within them, the calls that had begun and are not idempotent.
    """

    finished: int = 0
    ended: int = 0
    unknown: tuple[UnknownCall, ...] = ()

    def __add__(self, other: "Drained") -> "Drained":
        return Drained(
            finished=self.finished + other.finished,
            ended=self.ended + other.ended,
            unknown=self.unknown + other.unknown,
        )

    @property
    def exit_code(self) -> int:
        """For a process that has drained and ends: 0 if all has finished, 4 if any call is unknown, 3 otherwise."""
        if self.unknown:
            return SOME_UNKNOWN
        return SOME_ENDED if self.ended else ALL_FINISHED

    def __str__(self) -> str:
        unknown = f"; unknown: {', '.join(map(str, self.unknown))}" if self.unknown else ""
        return f"{self.finished} finished, {self.ended} ended{unknown}"
