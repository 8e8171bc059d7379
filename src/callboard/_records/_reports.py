"""Result of a drain, and the process exit code for it."""

from dataclasses import dataclass

ALL_FINISHED, SOME_ENDED, SOME_UNKNOWN = 0, 3, 4
"""Exit codes of a drained process. 1 and 2 already mean a failed start and a wrong command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCall:
    """Call that was ended after its body had started, so it is unknown whether it had its effect.

    Args:
        tool: name of the tool, or title of the body.
        call_id: id of the tool call; `None` if there is none.
        thread_id: conversation of the call; `None` if there is none.
    """

    tool: str
    call_id: str | None = None
    thread_id: str | None = None

    def __str__(self) -> str:
        where = "" if self.thread_id is None else f", thread {self.thread_id!r}"
        return f"{self.tool} (call {self.call_id!r}{where})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Counts of finished and ended work after a drain.

    The unit is a run of an agent or a node, a message of an actor, or a body of an engine. Two results can be added.

    Args:
        finished: number of units that ended by themselves, with a result or an error.
        ended: number of units that were ended when the drain's time was over.
        unknown: calls that were ended after their body had started, and that are not idempotent.
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
        """Exit code for a drained process: 0 if all work finished, 4 if any call is unknown, 3 otherwise."""
        if self.unknown:
            return SOME_UNKNOWN
        return SOME_ENDED if self.ended else ALL_FINISHED

    def __str__(self) -> str:
        unknown = f"; unknown: {', '.join(map(str, self.unknown))}" if self.unknown else ""
        return f"{self.finished} finished, {self.ended} ended{unknown}"
