"""Counts what happens to calls, from the events that `callboard.observe` gives."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from langchain_core.messages import ToolMessage

from callboard import CallEvent
from callboard._cli._actor_counts import ActorCounts
from callboard._cli._groups import note_in_short
from callboard._cli._labels import Arguments, shown_arguments
from callboard._cli._measures import Durations, Lately
from callboard.telemetry import CallPlace, CallTracker, Outcome, TrackedCall, outcome_of


@dataclass(slots=True)
class ToolCounts:
    """The calls of one tool: where they are, and how they ended."""

    between: int = 0
    """Those that neither wait nor run: on their way to the queue, or in the pause before another attempt."""
    waiting: int = 0
    running: int = 0
    ok: int = 0
    timeout: int = 0
    deadline: int = 0
    rejected: int = 0
    error: int = 0
    interrupted: int = 0
    """Those that asked a person; each is there again when it has its answer."""
    cancelled: int = 0
    longest_wait: float = 0.0
    """The longest that one call waited for its place, in seconds."""
    work: float = 0.0
    """How long its attempts took, added up, in seconds."""
    durations: Durations = field(default_factory=Durations)
    """From the beginning of a call to its end, its waits included."""

    @property
    def ended(self) -> int:
        """How many have ended, in whatever way."""
        return self.ok + self.failed + self.interrupted

    @property
    def failed(self) -> int:
        """How many ended without a result."""
        return self.timeout + self.deadline + self.rejected + self.error + self.cancelled

    @property
    def asked(self) -> int:
        """How many calls there are so far, whatever became of them."""
        return self.between + self.waiting + self.running + self.ended

    def move(self, before: CallPlace | Outcome, after: CallPlace | Outcome) -> None:
        """Count a call where it is now, and no more where it was."""
        setattr(self, before, getattr(self, before) - 1)
        setattr(self, after, getattr(self, after) + 1)

    def add(self, other: "ToolCounts") -> None:
        """Add another tool's numbers to these."""
        for one in fields(self):
            if one.name not in ("longest_wait", "durations"):
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        self.longest_wait = max(self.longest_wait, other.longest_wait)
        self.durations.merge(other.durations)


class OpenCall(TrackedCall):
    """A call, as the live view shows it.

    Args:
        begun: its first event.
    """

    __slots__ = ("_args", "_shown", "counted_as", "note")

    def __init__(self, begun: CallEvent) -> None:
        super().__init__(begun)
        self.note = ""
        """What was decided last, or said of its progress."""
        self.counted_as: CallPlace | Outcome = "between"
        self._args: object = None if begun.call is None else begun.call.get("args")
        self._shown: tuple[Arguments | None] | None = None

    @property
    def arguments(self) -> Arguments | None:
        """The arguments as they are shown, or `None` if they are not known; worked out once, when somebody looks."""
        if self._shown is None:
            self._shown = (shown_arguments(self._args),)
        return self._shown[0]


class CallCounts(CallTracker[OpenCall, CallEvent]):
    """Counts all calls of a run, by their tools; an observer.

    A call counts for the tool that was asked for, also while another one stands in for it.

    Args:
        tools: the names of those that are known, in the order in which they are shown.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        super().__init__()
        self.rows = {tool: ToolCounts() for tool in tools}
        self.actors = ActorCounts()
        """An observer of its own: of the actors that the calls ask."""
        self.most_open = 0
        self.queue = 0
        """How many calls wait now."""
        self.longest_queue = 0
        self._began: float | None = None
        self._lately = Lately()
        self._lock = threading.Lock()  # an agent within a sync tool has a loop and a thread of its own

    def __call__(self, event: CallEvent) -> None:
        """Bring the rows up to date with an event of a call; from any thread."""
        with self._lock:
            super().__call__(event)

    def total(self) -> ToolCounts:
        """The sum of all rows."""
        total = ToolCounts()
        for row in tuple(self.rows.values()):
            total.add(row)
        return total

    def elapsed(self, now: float) -> float:
        """Seconds since the first call began."""
        return 0.0 if self._began is None else now - self._began

    def rate(self, now: float) -> float:
        """How many calls a second have ended lately."""
        return 0.0 if self._began is None else self._lately.rate(now, self._began)

    def slowest(self, number: int) -> tuple[OpenCall, ...]:
        """The open calls that began first, at most so many."""
        return tuple(self.open.values())[:number]

    def longest_waits(self, now: float) -> Mapping[str, float]:
        """For each tool, how many seconds a call has waited at the most, or waits already."""
        waits = {tool: row.longest_wait for tool, row in tuple(self.rows.items())}
        for call in tuple(self.open.values()):
            if call.place == "waiting":
                waits[call.tool] = max(waits[call.tool], now - call.since)
        return waits

    def begun(self, event: CallEvent) -> OpenCall:
        """Count a call that begins."""
        if self._began is None:
            self._began = event.time
        self.most_open = max(self.most_open, len(self.open) + 1)
        self.rows.setdefault(event.tool, ToolCounts()).between += 1
        return OpenCall(event)

    def queued(self, call: OpenCall, event: CallEvent) -> None:
        """Count a call that waits."""
        self._count(call, call.place)

    def gave_up(self, call: OpenCall, event: CallEvent, since: float) -> None:
        """Count a call that has waited in vain."""
        self._waited(call, event)
        self._count(call, call.place)

    def started(self, call: OpenCall, event: CallEvent, waited_since: float | None) -> None:
        """Count a call that runs."""
        self._waited(call, event)
        self._count(call, call.place)

    def attempt_ended(self, call: OpenCall, event: CallEvent, since: float) -> None:
        """Count the work of an attempt, unless its call, which has ended, left it behind."""
        if not call.ended:
            self.rows[call.tool].work += event.time - since
            self._count(call, call.place)

    def noted(self, call: OpenCall, event: CallEvent) -> None:
        """Keep what was decided last, or said of its progress."""
        call.note = note_in_short(event.what, event.facts, event.message)

    def ended(self, call: OpenCall, event: CallEvent) -> None:
        """Count a call that has ended."""
        row = self.rows[call.tool]
        row.work += sum(event.time - since for since in call.running.values())
        row.durations.add(event.time - call.began)
        self._waited(call, event)
        self._lately.add(event.time)
        self._count(call, _outcome(event))

    def _waited(self, call: OpenCall, event: CallEvent) -> None:
        row = self.rows[call.tool]
        row.longest_wait = max(row.longest_wait, event.queue_wait)

    def _count(self, call: OpenCall, now: CallPlace | Outcome) -> None:
        """Count a call where it is now, and no more where it was."""
        before, call.counted_as = call.counted_as, now
        self.rows[call.tool].move(before, now)
        self.queue += (now == "waiting") - (before == "waiting")
        self.longest_queue = max(self.longest_queue, self.queue)


def _outcome(event: CallEvent) -> Outcome:
    """How a call ended; one of a tool that a model has made up ends with a message that says so, and no error."""
    refused = isinstance(event.result, ToolMessage) and event.result.status == "error"
    return "error" if event.error is None and refused else outcome_of(event.error)
