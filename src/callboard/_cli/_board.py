"""Counts what happens to calls, from the events that `callboard.observe` gives."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from langgraph.errors import GraphInterrupt

from callboard import CallEvent
from callboard.exceptions import CallRejectedError, CallTimeoutError, DeadlineExceededError

Ending = Literal["ok", "timeout", "rejected", "error", "interrupted", "cancelled"]


@dataclass(slots=True)
class Row:
    """The calls of one tool: where they are, and how they ended."""

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
        return self.waiting + self.running + self.ended

    def add(self, other: "Row") -> None:
        """Add another tool's numbers to these."""
        self.waiting += other.waiting
        self.running += other.running
        self.ok += other.ok
        self.timeout += other.timeout
        self.rejected += other.rejected
        self.error += other.error
        self.interrupted += other.interrupted
        self.cancelled += other.cancelled
        self.longest_wait = max(self.longest_wait, other.longest_wait)
        self.work += other.work


class Board:
    """All calls of a run, a row a tool; `note` is the observer.

    A call is in exactly one of two places until it has ended: in `_queued` or in `_started`.
    """

    def __init__(self, tools: Iterable[str]) -> None:
        self.rows = {tool: Row() for tool in tools}
        self._known = frozenset(self.rows)
        self._queued: set[str | None] = set()
        self._started: dict[str | None, float] = {}

    def total(self) -> Row:
        """The sum of all rows."""
        total = Row()
        for row in self.rows.values():
            total.add(row)
        return total

    def note(self, event: CallEvent) -> None:
        """Count one event in."""
        row = self.rows.setdefault(event.tool, Row())
        row.longest_wait = max(row.longest_wait, event.queue_wait)
        if event.phase == "queued":
            self._queued.add(event.call_id)
            row.waiting += 1
        elif event.phase == "started":
            self._leave_queue(row, event)
            self._started[event.call_id] = event.time
            row.running += 1
        elif event.phase == "attempt_ended":
            row.work += event.time - self._started.pop(event.call_id, event.time)
            row.running -= 1
        elif event.phase == "ended":
            self._leave_queue(row, event)
            ending = self._ending(event)
            setattr(row, ending, getattr(row, ending) + 1)

    def _leave_queue(self, row: Row, event: CallEvent) -> None:
        if event.call_id in self._queued:
            self._queued.remove(event.call_id)
            row.waiting -= 1

    def _ending(self, event: CallEvent) -> Ending:
        if event.error is None:
            # A call of a tool that a model has made up ends at once, with a message that says so.
            return "ok" if event.tool in self._known else "error"
        if not isinstance(event.error, Exception):
            return "cancelled"
        if isinstance(event.error, GraphInterrupt):
            return "interrupted"
        if isinstance(event.error, (CallTimeoutError, DeadlineExceededError)):
            return "timeout"
        return "rejected" if isinstance(event.error, CallRejectedError) else "error"
