"""Counts of calls by tool and state, and counts of actors and their asks.

The counts are made of live events, or of a recording.
"""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import ceil
from typing import get_args

from callboard import ActorEvent, AskEvent, CallEvent
from callboard._cli._grid import Arguments, argument_texts
from callboard._cli._groups import note_in_short
from callboard.telemetry import FAILURES, CallPlace, CallTracker, Outcome, Part, RecordedCall, TrackedCall, outcome_of

_WINDOW = 5.0
"""Length in seconds of the time over which the rate of calls is averaged."""
_SHORTEST_WINDOW = 0.25
_LONGEST_NOTE = 500
"""Largest length of the latest note of a call, in characters; a row of a view has room for fewer."""


@dataclass(slots=True)
class ToolRow:
    """Counts and times of the calls of one tool. Durations are in seconds, and include waits in queues."""

    states: Counter[str] = field(default_factory=Counter[str])
    """Number of calls in each state: open calls by `CallPlace`, ended calls by `Outcome`.

    A resumed call is counted again.
    """
    waited: float = 0.0
    """Total time in seconds that all ended calls waited in queues."""
    longest_wait: float = 0.0
    """Longest time in seconds that one call waited in queues."""
    durations: list[float] = field(default_factory=list[float])
    """Duration of each ended call, in seconds."""
    retries: int = 0
    """Number of attempts after the first of their call."""

    @property
    def calls(self) -> int:
        """Number of all calls of the tool, open and ended."""
        return self.states.total()

    @property
    def open(self) -> int:
        """Number of calls of the tool that have not ended."""
        return sum(self.states[state] for state in get_args(CallPlace))

    @property
    def failed(self) -> int:
        """Number of calls of the tool that ended in a failure."""
        return sum(self.states[outcome] for outcome in FAILURES)


@dataclass(slots=True)
class ActorRow:
    """Counts and times of all actors with one name, and of the asks (requests) to them. Durations are in seconds."""

    waiting: int = 0
    """Number of asks that wait in mailboxes."""
    running: int = 0
    failed: int = 0
    longest_wait: float = 0.0
    """Longest time in seconds that one ask waited in a mailbox."""
    durations: list[float] = field(default_factory=list[float])
    """Duration of each ended ask in seconds, waits in mailboxes included."""
    alive: int = 0
    """Number of live actors that the observer saw start."""
    changes: Counter[str] = field(default_factory=Counter[str])
    """Number of starts, restarts, evictions and other changes, by `ActorPhase`."""

    @property
    def asks(self) -> int:
        """Number of all asks (requests) to the actors, open and ended."""
        return self.waiting + self.running + len(self.durations)


def percentile(durations: list[float], percent: int) -> float | None:
    """Return the duration that `percent` per cent of the durations do not exceed; `None` for an empty list."""
    durations.sort()  # in place: the next sort of a list that has only grown is linear
    return durations[max(0, ceil(len(durations) * percent / 100) - 1)] if durations else None


def total(rows: Iterable[ToolRow]) -> ToolRow:
    """Add up the counts of several tools, and return the sums as one `ToolRow`."""
    added = ToolRow()
    for row in rows:
        added.states.update(row.states)
        added.waited += row.waited
        added.longest_wait = max(added.longest_wait, row.longest_wait)
        added.durations += row.durations
        added.retries += row.retries
    return added


# Counts of a recording.


def tool_rows(calls: Iterable[RecordedCall]) -> Sequence[tuple[str, ToolRow]]:
    """Return a pair of name and `ToolRow` for each tool in a recording, the tool with the most calls first."""
    rows: defaultdict[str, ToolRow] = defaultdict(ToolRow)
    for call in calls:
        row = rows[call.tool]
        row.states["between" if call.end is None else str(call.outcome)] += 1
        row.waited += call.waited
        row.retries += max(0, len(call.attempts) - 1)
        row.longest_wait = max(row.longest_wait, call.waited)
        if call.end is not None:
            row.durations.append(call.end - call.start)
    return sorted(rows.items(), key=lambda item: (-item[1].calls, item[0]))


def actor_rows(parts: Iterable[Part]) -> Sequence[tuple[str, ActorRow]]:
    """Return a pair of name and `ActorRow` for each actor in a recording, the actor with the most asks first."""
    rows: defaultdict[str, ActorRow] = defaultdict(ActorRow)
    for part in parts:
        for ask in part.asks:
            row = rows[ask.actor]
            row.failed += ask.outcome in FAILURES
            if ask.handler_start is not None:
                row.longest_wait = max(row.longest_wait, ask.handler_start - ask.start)
            if ask.end is not None:
                row.durations.append(ask.end - ask.start)
            elif ask.handler_start is None:
                row.waiting += 1
            else:
                row.running += 1
        for change in part.lives:
            rows[change.actor].changes[change.phase] += 1
    return sorted(rows.items(), key=lambda item: (-item[1].asks, item[0]))


# Counts of a run, from its events.


class ActorCounts:
    """Observer that counts actors and the asks (requests) to actors, with a row for each actor name."""

    def __init__(self) -> None:
        self._rows: dict[str, ActorRow] = {}
        self._asks: dict[int, tuple[float, bool]] = {}
        """Open asks by number: the start time of the ask, and `True` if its handler has begun."""
        self._lives: set[int] = set()
        """Numbers of the live actors whose start this observer saw."""
        self._lock = threading.Lock()  # actors may run in event loops of other threads

    def rows(self) -> Mapping[str, ActorRow]:
        """Return the current counts of each actor, by actor name; may be called from any thread."""
        with self._lock:
            return dict(self._rows)

    def __call__(self, event: AskEvent | ActorEvent) -> None:
        """Count an event of an actor, or of an ask (request) to an actor, in the actor's row."""
        with self._lock:
            row = self._rows.setdefault(event.actor, ActorRow())
            if isinstance(event, ActorEvent):
                self._count_life(row, event)
            elif event.phase == "begun":
                self._asks[event.number] = event.time, False
                row.waiting += 1
            elif event.number in self._asks:  # otherwise the ask began before this observer
                self._count_ask(row, event)

    def _count_ask(self, row: ActorRow, event: AskEvent) -> None:
        began, is_taken = self._asks[event.number]
        if is_taken:
            row.running -= 1
        else:
            row.waiting -= 1
        row.longest_wait = max(row.longest_wait, event.waited)
        if event.phase == "taken":
            self._asks[event.number] = began, True
            row.running += 1
            return
        del self._asks[event.number]
        row.durations.append(event.time - began)
        row.failed += outcome_of(event.error) in FAILURES

    def _count_life(self, row: ActorRow, event: ActorEvent) -> None:
        row.changes[event.phase] += 1
        if event.phase in ("started", "restarted"):
            self._lives.add(event.number)
            row.alive += 1
        elif event.phase in ("died", "stopped") and event.number in self._lives:
            self._lives.remove(event.number)
            row.alive -= 1


class OpenCall(TrackedCall):
    """Call that has not ended, with its arguments and the latest note: a progress report or a middleware's decision."""

    def __init__(self, first_event: CallEvent) -> None:
        super().__init__(first_event)
        self.note = ""
        """Latest note of the call as a short text: a decision of middleware, or a progress report."""
        self.is_in_background = False
        """`True` once the step of the call has ended without it."""
        self.counted_as: CallPlace | Outcome = "between"
        self._args: object = None if first_event.call is None else first_event.call.get("args")

    @cached_property
    def arguments(self) -> Arguments | None:
        """Arguments of the call as a dict from name to text, or `None` if they are unknown."""
        return argument_texts(self._args)


class CallCounts(CallTracker[OpenCall, CallEvent]):
    """Observer that counts a run's calls by tool. A call counts for its tool even if a fallback tool handles it."""

    def __init__(self, tools: Iterable[str]) -> None:
        super().__init__()
        self.rows = {tool: ToolRow() for tool in tools}
        self.actors = ActorCounts()
        """Observer of the actors to which the calls send asks. This observer has to be registered separately."""
        self.took: dict[str | None, float] = {}
        """Duration of each ended call in seconds, waits included, by the id of the call."""
        self.attempts: dict[str | None, int] = {}
        """Number of attempts of each ended call that had several, by the id of the call."""
        self.most_open = 0
        self.queue = 0
        """Number of calls that are waiting in queues now."""
        self.longest_queue = 0
        self._start: float | None = None
        self._ends: deque[float] = deque()
        """Times at which calls ended, for the last five seconds."""
        self._lock = threading.Lock()  # an agent inside a sync tool runs in another thread with its own event loop

    def __call__(self, event: CallEvent) -> None:
        """Count an event of a call in the row of its tool; may be called from any thread."""
        with self._lock:
            super().__call__(event)
            if (call := self.open.get(event.number)) is not None:
                self._count(call, call.place, event)

    def rows_at(self, now: float) -> dict[str, ToolRow]:
        """Return a copy of each tool's counts, by tool name; `longest_wait` includes calls that still wait at `now`."""
        rows = dict[str, ToolRow]()
        with self._lock:
            for tool, row in self.rows.items():
                row.durations.sort()  # here, so that a copy needs no sort of its own
                rows[tool] = replace(row, states=row.states.copy(), durations=[*row.durations])
            for call in self.open.values():
                if call.place == "waiting":
                    rows[call.tool].longest_wait = max(rows[call.tool].longest_wait, now - call.since)
        return rows

    def run_time(self, now: float) -> float:
        """Return the seconds from the start of the first call until `now`; 0 before the first call."""
        return 0.0 if self._start is None else now - self._start

    def rate(self, now: float) -> float:
        """Return how many calls ended per second, averaged over the last five seconds."""
        with self._lock:
            while self._ends and self._ends[0] <= now - _WINDOW:
                self._ends.popleft()
            return len(self._ends) / max(_SHORTEST_WINDOW, min(_WINDOW, self.run_time(now)))

    def slowest(self, number: int) -> tuple[OpenCall, ...]:
        """Return the calls that have been open for the longest time, oldest first; at most `number` calls."""
        with self._lock:
            return tuple(islice(self.open.values(), number))

    def on_begin(self, event: CallEvent) -> OpenCall:
        """Count a new call, and return it as an open call."""
        if self._start is None:
            self._start = event.time
        self.most_open = max(self.most_open, len(self.open) + 1)
        self.rows.setdefault(event.tool, ToolRow()).states["between"] += 1
        return OpenCall(event)

    def on_start(self, call: OpenCall, event: CallEvent, waited_since: float | None) -> None:
        """Count an attempt after the first as a retry."""
        self.rows[call.tool].retries += event.attempt > 1

    def on_note(self, call: OpenCall, event: CallEvent) -> None:
        """Store the latest note of a call as a short text: a progress report, or a decision of a middleware."""
        if event.note == "backgrounded":
            call.is_in_background = True
            return
        call.note = note_in_short(event.note, event.facts, event.message)[:_LONGEST_NOTE]

    def on_end(self, call: OpenCall, event: CallEvent) -> None:
        """Count a call under its outcome, after it ended."""
        row = self.rows[call.tool]
        self.took[event.call_id] = event.time - call.began
        if call.attempt > 1:
            self.attempts[event.call_id] = call.attempt
        row.durations.append(event.time - call.began)
        row.waited += event.queue_wait
        self._ends.append(event.time)
        from langchain_core.messages import ToolMessage  # not above: recordings are shown without LangChain

        # A call of an unknown tool has an error message as result, and no error.
        refused = isinstance(event.result, ToolMessage) and event.result.status == "error"
        self._count(call, "error" if event.error is None and refused else outcome_of(event.error), event)

    def _count(self, call: OpenCall, new_state: CallPlace | Outcome, event: CallEvent) -> None:
        """Move a call from the count of its former state to the count of its new state, `new_state`."""
        row, old_state = self.rows[call.tool], call.counted_as
        call.counted_as = new_state
        row.longest_wait = max(row.longest_wait, event.queue_wait)
        row.states[old_state] -= 1
        row.states[new_state] += 1
        self.queue += (new_state == "waiting") - (old_state == "waiting")
        self.longest_queue = max(self.longest_queue, self.queue)
