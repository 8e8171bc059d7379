"""Reports about calls and actors: statistics of one moment, and the result of a drain (an orderly shutdown)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from callboard._records._events import CallPlace

ALL_FINISHED, SOME_ENDED, SOME_UNKNOWN = 0, 3, 4
"""Exit codes of a process after a drain. Codes 1 and 2 already mean a failed start and a wrong command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCall:
    """Call that was cut off after its function had started; it is unknown whether the function had its effect.

    Args:
        tool: name of the tool, or title of the body.
        call_id: id of the tool call; `None` if there is none.
        thread_id: conversation of the call; `None` if there is none.
    """

    tool: str
    call_id: str | None = None
    thread_id: str | None = None

    def __str__(self) -> str:
        thread = "" if self.thread_id is None else f", thread {self.thread_id!r}"
        return f"{self.tool} (call {self.call_id!r}{thread})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCall:
    """State of a call that has not ended, at one moment; `running()` of a node or an agent returns them.

    Args:
        tool: name of the tool.
        call_id: id of the tool call, as the model wrote it; `None` if there is none. It may repeat in other threads.
        thread_id: conversation of the call; `None` if there is none.
        place: "running" while an attempt runs the tool's function, "waiting" while it waits for a permit, "between"
            elsewhere, such as in the pause before a retry.
        attempt: number of the latest attempt, from 1; 0 before the first one.
        seconds: time since the batch of the call began.
        limit: name of the limit for which the call waits, as in a rejection, such as "tool 'search'"; `None` if it
            waits for none.
        progress: latest message of `progress()` in the call; empty if there was none. It is as confidential as the
            arguments of the call.
    """

    tool: str
    call_id: str | None
    thread_id: str | None
    place: CallPlace
    attempt: int
    seconds: float
    limit: str | None = None
    progress: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Result of a drain: counts of the work that finished by itself, and of the work that the drain cancelled.

    The unit is a run of an agent or a node, a message of an actor, or a body of an engine. Two results can be added.

    Args:
        finished: number of units that ended by themselves, with a result or an error.
        ended: number of units that were ended when the drain's time was over.
        unknown: calls that were ended after their body had started, and that are not idempotent.
    """

    finished: int = 0
    ended: int = 0
    unknown: tuple[UnknownCall, ...] = ()

    def __add__(self, addend: "Drained") -> "Drained":
        return Drained(
            finished=self.finished + addend.finished,
            ended=self.ended + addend.ended,
            unknown=self.unknown + addend.unknown,
        )

    @property
    def exit_code(self) -> int:
        """Exit code for a process after a drain: 0 if all work finished, 4 if `unknown` has any calls, 3 otherwise."""
        if self.unknown:
            return SOME_UNKNOWN
        return SOME_ENDED if self.ended else ALL_FINISHED

    def __str__(self) -> str:
        unknown = f"; unknown: {', '.join(map(str, self.unknown))}" if self.unknown else ""
        return f"{self.finished} finished, {self.ended} ended{unknown}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStatistics:
    """Statistics of one actor at one moment, or the sums over all keyed actors with the same name."""

    alive: int
    """Number of actors that run or are starting."""
    running: int
    """Number of calls with a running handler, or with a `Reply` that is still open."""
    waiting: int
    """Number of calls in the mailboxes."""
    restarts: int
    """Number of restarts so far, after an actor ended by itself."""
    evictions: int
    """Number of actors evicted so far, because they were idle or because an actor of another key needed the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of a node's calls at one moment."""

    running: int
    """Number of running calls, without those that have abandoned their thread."""
    waiting: int
    """Number of calls that wait for a permit."""
    abandoned_threads: int
    """Number of worker threads that outlived their calls. Each still holds its permits."""
    actors: Mapping[str, ActorStatistics] = field(default_factory=dict[str, ActorStatistics])
    """Statistics of the node's actors, by name."""
