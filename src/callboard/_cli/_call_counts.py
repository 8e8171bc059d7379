"""Counts what happens to calls, from the events that `callboard.observe` gives."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from langchain_core.messages import ToolMessage
from langgraph.errors import GraphInterrupt

from callboard import CallEvent
from callboard._cli._measures import Durations, Lately
from callboard._cli._shown_text import call_text
from callboard.exceptions import CallRejectedError, CallTimeoutError, DeadlineExceededError

Place = Literal["between", "waiting", "running"]
Ending = Literal["ok", "timeout", "rejected", "error", "interrupted", "cancelled"]
FAILURES: tuple[Ending, ...] = ("timeout", "rejected", "error", "cancelled")

_LENGTH = 200
"""Characters of a call: more than a terminal shows of it."""


@dataclass(slots=True)
class Row:
    """The calls of one tool: where they are, and how they ended."""

    between: int = 0
    """Those that neither wait nor run: on their way to the queue, or in the pause before another attempt."""
    waiting: int = 0
    running: int = 0
    ok: int = 0
    timeout: int = 0
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
        return self.timeout + self.rejected + self.error + self.cancelled

    @property
    def asked(self) -> int:
        """How many there are so far."""
        return self.between + self.waiting + self.running + self.ended

    def move(self, before: Place | None, after: Place | Ending) -> None:
        """Count a call where it is now, and no more where it was."""
        if before is not None:
            setattr(self, before, getattr(self, before) - 1)
        setattr(self, after, getattr(self, after) + 1)

    def add(self, other: "Row") -> None:
        """Add another tool's numbers to these."""
        for one in fields(self):
            if one.name not in ("longest_wait", "durations"):
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        self.longest_wait = max(self.longest_wait, other.longest_wait)
        self.durations.merge(other.durations)


@dataclass(slots=True)
class OpenCall:
    """A call that has not ended."""

    tool: str
    args: object
    began: float
    """In seconds on the loop's clock, as all times."""
    since: float
    """When it came to the place where it is."""
    attempt: int = 0
    """The latest."""
    note: str = ""
    """What was decided last."""
    started: dict[int, float] = field(default_factory=dict[int, float])
    """When the attempts began that have not ended; there may be several."""
    queued: list[str] = field(default_factory=list[str])
    """The tools for which attempts wait; that of a fallback is another one."""
    _text: str = ""

    @property
    def text(self) -> str:
        """The call as it was written; worked out once, when somebody looks."""
        self._text = self._text or call_text(self.tool, self.args, _LENGTH)
        return self._text

    @property
    def place(self) -> Place:
        """Where it is."""
        if self.started:
            return "running"
        return "waiting" if self.queued else "between"

    def take(self, event: CallEvent) -> None:
        """Take in what became of an attempt."""
        before = self.place
        if event.phase == "queued":
            self.queued.append(event.tool)
        elif event.phase == "attempt_ended":
            self.started.pop(event.attempt, None)
        elif event.tool in self.queued:  # not every tool has a queue
            self.queued.remove(event.tool)
        if event.phase == "started":
            self.started[event.attempt] = event.time
            self.attempt = event.attempt
        if self.place != before:
            self.since = event.time


class Board:
    """All calls of a run, a row a tool; `note` is the observer.

    A call counts for the tool that was asked for, also while another one stands in for it.

    Args:
        tools: the names of those that are known, in the order in which they are shown.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        self.rows = {tool: Row() for tool in tools}
        self.open: dict[int, OpenCall] = {}
        """By their numbers; the first has been there for the longest time."""
        self.most_open = 0
        self.queue = 0
        """How many calls wait now."""
        self.longest_queue = 0
        self._began: float | None = None
        self._lately = Lately()
        self._lock = threading.Lock()  # an agent within a sync tool has a loop and a thread of its own

    def total(self) -> Row:
        """The sum of all rows."""
        total = Row()
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
        """By tool, the longest that a call waited or has been waiting."""
        waits = {tool: row.longest_wait for tool, row in tuple(self.rows.items())}
        for call in tuple(self.open.values()):
            if call.place == "waiting":
                waits[call.tool] = max(waits[call.tool], now - call.since)
        return waits

    def note(self, event: CallEvent) -> None:
        """Count one event in."""
        with self._lock:
            call = self.open.get(event.number)
            if event.phase == "begun":
                self._begin(event)
            elif call is None:
                return  # an attempt that its call has left behind
            elif event.phase == "ended":
                self._end(call, event)
            elif event.phase == "noted":
                call.note = event.what
            else:
                self._follow(call, event)

    def _begin(self, event: CallEvent) -> None:
        if self._began is None:
            self._began = event.time
        args = None if event.call is None else event.call.get("args")
        self.open[event.number] = OpenCall(event.tool, args, began=event.time, since=event.time)
        self.most_open = max(self.most_open, len(self.open))
        self._move(event.tool, None, "between")

    def _follow(self, call: OpenCall, event: CallEvent) -> None:
        row = self.rows[call.tool]
        row.longest_wait = max(row.longest_wait, event.queue_wait)
        if event.phase == "attempt_ended":
            row.work += event.time - call.started.get(event.attempt, event.time)
        before = call.place
        call.take(event)
        self._move(call.tool, before, call.place)

    def _end(self, call: OpenCall, event: CallEvent) -> None:
        del self.open[event.number]
        row = self.rows[call.tool]
        row.longest_wait = max(row.longest_wait, event.queue_wait)
        row.work += sum(event.time - since for since in call.started.values())
        row.durations.add(event.time - call.began)
        self._lately.add(event.time)
        self._move(call.tool, call.place, _ending(event))

    def _move(self, tool: str, before: Place | None, after: Place | Ending) -> None:
        self.rows.setdefault(tool, Row()).move(before, after)
        self.queue += (after == "waiting") - (before == "waiting")
        self.longest_queue = max(self.longest_queue, self.queue)


def _ending(event: CallEvent) -> Ending:
    if event.error is None:
        # A call of a tool that a model has made up ends at once, with a message that says so.
        refused = isinstance(event.result, ToolMessage) and event.result.status == "error"
        return "error" if refused else "ok"
    if not isinstance(event.error, Exception):
        return "cancelled"
    if isinstance(event.error, GraphInterrupt):
        return "interrupted"
    if isinstance(event.error, (CallTimeoutError, DeadlineExceededError)):
        return "timeout"
    return "rejected" if isinstance(event.error, CallRejectedError) else "error"
