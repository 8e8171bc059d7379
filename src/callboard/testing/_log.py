"""Log of the events of calls, shared by tasks and threads."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

import anyio

Kind: TypeAlias = Literal["started", "finished", "raised", "cancelled", "cleaned up"]
"""Kind of an event: `cancelled` when the cancellation arrives, `cleaned up` when the clean-up is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Event of a recorded call."""

    kind: Kind
    tool: str
    query: str
    """Argument of the call."""
    time: float
    """Seconds since the first event of the log, on the clock of the event loop."""

    def __str__(self) -> str:
        return f"{label(self.tool, self.query)} {self.kind}"


@dataclass(frozen=True, slots=True)
class _Move:
    """Entry into a body (`step` +1) or exit from it (-1)."""

    tool: str
    query: str
    step: int


class Log:
    """Ordered events, and the number of running bodies after each entry and exit."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._moves: list[_Move] = []
        self._clock = _Stopwatch()
        self._lock = threading.Lock()  # sync tools write from worker threads

    def enter(self, tool: str, query: str) -> None:
        """Record that a body begins."""
        with self._lock:
            self._moves.append(_Move(tool, query, +1))
            self._add("started", tool, query)

    def add(self, kind: Kind, tool: str, query: str) -> None:
        """Record an event inside a body."""
        with self._lock:
            self._add(kind, tool, query)

    def leave(self, tool: str, query: str) -> None:
        """Record that a body is over, by return, error or cancellation."""
        with self._lock:
            self._moves.append(_Move(tool, query, -1))

    def levels(self, tool: str | None, query: str | None) -> list[int]:
        """Return the number of running bodies after each entry and exit, starting with 0."""
        with self._lock:
            steps = [move.step for move in self._moves if _fits(move, tool, query)]
        return list(accumulate(steps, initial=0))

    def select(self, kind: Kind | None, tool: str | None, query: str | None) -> Iterable[Event]:
        """Return the events of a kind, tool and query; `None` matches all."""
        with self._lock:
            events = list(self.events)
        return (event for event in events if kind in (None, event.kind) and _fits(event, tool, query))

    def _add(self, kind: Kind, tool: str, query: str) -> None:
        self.events.append(Event(kind=kind, tool=tool, query=query, time=self._clock.read()))


class _Stopwatch:
    """Seconds since the first reading, by the event loop's clock, or by the machine's clock in a worker thread."""

    # A thread cannot read the loop's clock. The two clocks agree only if the loop's clock is not virtual.

    def __init__(self) -> None:
        self._loop_origin: float | None = None
        self._machine_origin: float | None = None

    def read(self) -> float:
        machine = time.monotonic()
        if self._machine_origin is None:
            self._machine_origin = machine
        elapsed = machine - self._machine_origin
        try:
            now = anyio.current_time()
        except RuntimeError:
            return elapsed
        if self._loop_origin is None:
            self._loop_origin = now - elapsed
        return now - self._loop_origin


def label(tool: str, query: str) -> str:
    """Return a short name of a call: `search` or `search(tea)`."""
    return f"{tool}({query})" if query else tool


def _fits(entry: Event | _Move, tool: str | None, query: str | None) -> bool:
    return tool in (None, entry.tool) and query in (None, entry.query)
