"""Counts of calls by tool and state, and of actors and their asks, made from observed events."""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import ceil, exp, floor, log

from langchain_core.messages import ToolMessage

from callboard import ActorEvent, AskEvent, CallEvent
from callboard._cli._grid import Arguments, shown_arguments
from callboard._cli._groups import note_in_short
from callboard.telemetry import CallPlace, CallTracker, Outcome, TrackedCall, outcome_of

# Durations and rates of any number of calls, in constant memory.

_GROWTH = log(1.04)
"""Width of a bucket on a log scale: 4 %, so the middle of a bucket is less than 2 % off."""
_SHORTEST = 1e-4
_LONGEST = 1e6

_WINDOW = 5.0
_STEP = 0.25


class Durations:
    """Histogram of durations in about 600 buckets at most.

    A quantile is less than 2 % off between 0.1 ms and eleven days. Shorter durations count as 0.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return sum(self._counts.values())

    def add(self, seconds: float) -> None:
        """Count a duration in seconds."""
        self._counts[_bucket(seconds)] += 1

    def merge(self, other: "Durations") -> None:
        """Add the durations of another histogram."""
        self._counts.update(other._counts)

    def quantile(self, share: float) -> float | None:
        """Return the duration that a share (0 to 1) of the calls did not exceed; `None` without durations."""
        counts = sorted(self._counts.items())
        left = max(1, ceil(share * sum(number for _, number in counts)))
        for bucket, number in counts:
            left -= number
            if left <= 0:
                return _middle(bucket)
        return None


def _bucket(seconds: float) -> int:
    if seconds < _SHORTEST:
        return -1
    return floor(log(min(seconds, _LONGEST) / _SHORTEST) / _GROWTH)


def _middle(bucket: int) -> float:
    return 0.0 if bucket < 0 else _SHORTEST * exp((bucket + 0.5) * _GROWTH)


class Lately:
    """Counter of the calls that ended in the last five seconds, in steps of a quarter of a second."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque(maxlen=ceil(_WINDOW / _STEP) + 1)

    def add(self, time: float) -> None:
        """Count a call that ended at a time, in seconds."""
        step, number = floor(time / _STEP), 0
        if self._steps and self._steps[-1][0] >= step:  # an event of another thread may arrive a little late
            step, number = self._steps.pop()
        self._steps.append((step, number + 1))

    def rate(self, now: float, since: float) -> float:
        """Return the average number of ended calls per second; `since` is the time when counting began."""
        first = floor((now - _WINDOW) / _STEP)
        number = sum(number for step, number in tuple(self._steps) if step > first)
        return number / max(_STEP, min(_WINDOW, now - since))


# Actors and their asks.


@dataclass(slots=True)
class ActorRow:
    """Counts of the actors of one name and of their asks."""

    alive: int = 0
    waiting: int = 0
    """Asks in mailboxes."""
    running: int = 0
    ended: int = 0
    restarts: int = 0
    evictions: int = 0
    longest_wait: float = 0.0
    """Longest wait of an ask for its handler, in seconds."""


class ActorCounts:
    """Observer that counts actors and their asks, by the names of actors."""

    def __init__(self) -> None:
        self._rows: dict[str, ActorRow] = {}
        self._taken: dict[int, bool] = {}
        """Open asks by number; the value is `True` once the handler has begun."""
        self._lives: set[int] = set()
        """Numbers of the live actors that this observer saw start."""
        self._lock = threading.Lock()  # actors may run in event loops of other threads

    def rows(self) -> Mapping[str, ActorRow]:
        """Return the rows by name of actor, as they are now; may be called from any thread."""
        with self._lock:
            return dict(self._rows)

    def __call__(self, event: AskEvent | ActorEvent) -> None:
        """Update the row of an actor with an event."""
        with self._lock:
            row = self._rows.setdefault(event.actor, ActorRow())
            if isinstance(event, ActorEvent):
                self._count_life(row, event)
            else:
                self._count_ask(row, event)

    def _count_ask(self, row: ActorRow, event: AskEvent) -> None:
        if event.phase == "begun":
            self._taken[event.number] = False
            row.waiting += 1
            return
        if event.number not in self._taken:
            return  # the ask began before this observer
        row.longest_wait = max(row.longest_wait, event.waited)
        if event.phase == "taken":
            self._taken[event.number] = True
            row.waiting -= 1
            row.running += 1
            return
        row.ended += 1
        if self._taken.pop(event.number):
            row.running -= 1
        else:
            row.waiting -= 1

    def _count_life(self, row: ActorRow, event: ActorEvent) -> None:
        if event.phase in ("started", "restarted"):
            self._lives.add(event.number)
            row.alive += 1
        elif event.phase in ("died", "stopped") and event.number in self._lives:
            self._lives.remove(event.number)
            row.alive -= 1
        row.restarts += event.phase == "restarted"
        row.evictions += event.phase == "evicted"


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
    """Observer that counts all calls of a run by tool. A call counts for the called tool, even if a fallback runs."""

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
        """Count a call that left its queue without a permit."""
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
