"""Counts of calls by tool and state, made from observed events."""

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
    """Counts of the calls of one tool, by state and by outcome."""

    between: int = 0
    """Open calls that neither wait nor run: before their queue, or in the pause before another attempt."""
    waiting: int = 0
    running: int = 0
    ok: int = 0
    timeout: int = 0
    deadline: int = 0
    rejected: int = 0
    error: int = 0
    interrupted: int = 0
    """Calls that asked a person. A resumed call is counted again."""
    cancelled: int = 0
    longest_wait: float = 0.0
    """Longest time of one call in queues, in seconds."""
    work: float = 0.0
    """Total duration of all attempts, in seconds."""
    durations: Durations = field(default_factory=Durations)
    """Durations of calls from beginning to end, waits included."""

    @property
    def ended(self) -> int:
        """Number of calls that have ended, in any way."""
        return self.ok + self.failed + self.interrupted

    @property
    def failed(self) -> int:
        """Number of calls that ended in a failure."""
        return self.timeout + self.deadline + self.rejected + self.error + self.cancelled

    @property
    def asked(self) -> int:
        """Number of all calls so far."""
        return self.between + self.waiting + self.running + self.ended

    def move(self, before: CallPlace | Outcome, after: CallPlace | Outcome) -> None:
        """Move one call from one count to another."""
        setattr(self, before, getattr(self, before) - 1)
        setattr(self, after, getattr(self, after) + 1)

    def add(self, other: "ToolCounts") -> None:
        """Add the counts of another tool."""
        for one in fields(self):
            if one.name not in ("longest_wait", "durations"):
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        self.longest_wait = max(self.longest_wait, other.longest_wait)
        self.durations.merge(other.durations)


class OpenCall(TrackedCall):
    """Tracked call with its arguments and its latest note, for the live view."""

    __slots__ = ("_args", "_shown", "counted_as", "note")

    def __init__(self, begun: CallEvent) -> None:
        super().__init__(begun)
        self.note = ""
        """Latest note: a decision or a progress report."""
        self.counted_as: CallPlace | Outcome = "between"
        self._args: object = None if begun.call is None else begun.call.get("args")
        self._shown: tuple[Arguments | None] | None = None

    @property
    def arguments(self) -> Arguments | None:
        """Arguments as texts, or `None` if they are unknown. Computed at first access."""
        if self._shown is None:
            self._shown = (shown_arguments(self._args),)
        return self._shown[0]


class CallCounts(CallTracker[OpenCall, CallEvent]):
    """Observer that counts all calls of a run by tool. A call counts for the called tool, even if a fallback runs.

    Args:
        tools: names of the known tools, in the order of display.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        super().__init__()
        self.rows = {tool: ToolCounts() for tool in tools}
        self.actors = ActorCounts()
        """Separate observer for the actors that the calls ask."""
        self.most_open = 0
        self.queue = 0
        """Number of calls that wait now."""
        self.longest_queue = 0
        self._began: float | None = None
        self._lately = Lately()
        self._lock = threading.Lock()  # an agent inside a sync tool runs in another thread with its own event loop

    def __call__(self, event: CallEvent) -> None:
        """Update the rows with an event of a call; may be called from any thread."""
        with self._lock:
            super().__call__(event)

    def total(self) -> ToolCounts:
        """Return the sum of all rows."""
        # Over a copy: another thread may add the row of an unknown tool meanwhile.
        total = ToolCounts()
        for row in tuple(self.rows.values()):
            total.add(row)
        return total

    def elapsed(self, now: float) -> float:
        """Return the seconds since the first call began."""
        return 0.0 if self._began is None else now - self._began

    def rate(self, now: float) -> float:
        """Return the number of calls that ended per second during the last five seconds."""
        return 0.0 if self._began is None else self._lately.rate(now, self._began)

    def slowest(self, number: int) -> tuple[OpenCall, ...]:
        """Return the oldest open calls, at most `number`."""
        return tuple(self.open.values())[:number]

    def longest_waits(self, now: float) -> Mapping[str, float]:
        """Return the longest wait of a call of each tool in seconds, calls that still wait included."""
        waits = {tool: row.longest_wait for tool, row in tuple(self.rows.items())}
        for call in tuple(self.open.values()):
            if call.place == "waiting":
                waits[call.tool] = max(waits[call.tool], now - call.since)
        return waits

    def begun(self, event: CallEvent) -> OpenCall:
        """Count a new call."""
        if self._began is None:
            self._began = event.time
        self.most_open = max(self.most_open, len(self.open) + 1)
        self.rows.setdefault(event.tool, ToolCounts()).between += 1
        return OpenCall(event)

    def queued(self, call: OpenCall, event: CallEvent) -> None:
        """Count a call that joined a queue."""
        self._count(call, call.place)

    def gave_up(self, call: OpenCall, event: CallEvent, since: float) -> None:
        """Count a call that left its queue without a place."""
        self._waited(call, event)
        self._count(call, call.place)

    def started(self, call: OpenCall, event: CallEvent, waited_since: float | None) -> None:
        """Count a call with a running attempt."""
        self._waited(call, event)
        self._count(call, call.place)

    def attempt_ended(self, call: OpenCall, event: CallEvent, since: float) -> None:
        """Add the duration of an attempt; `ended()` has already added that of an attempt that outlives its call."""
        if not call.ended:
            self.rows[call.tool].work += event.time - since
            self._count(call, call.place)

    def noted(self, call: OpenCall, event: CallEvent) -> None:
        """Store the latest note of a call."""
        call.note = note_in_short(event.what, event.facts, event.message)

    def ended(self, call: OpenCall, event: CallEvent) -> None:
        """Count a finished call under its outcome."""
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
        """Move a call to the count of its present state."""
        before, call.counted_as = call.counted_as, now
        self.rows[call.tool].move(before, now)
        self.queue += (now == "waiting") - (before == "waiting")
        self.longest_queue = max(self.longest_queue, self.queue)


def _outcome(event: CallEvent) -> Outcome:
    """Return the outcome of a call. A call of an unknown tool has an error message as result, and no error."""
    refused = isinstance(event.result, ToolMessage) and event.result.status == "error"
    return "error" if event.error is None and refused else outcome_of(event.error)
