"""What happened and when, written down by tasks and threads alike."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

import anyio

Kind: TypeAlias = Literal["started", "finished", "raised", "cancelled", "cleaned up"]
"""What can happen to a call: `cancelled` when cancellation arrives, `cleaned up` when clean-up is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to one call."""

    kind: Kind
    tool: str
    query: str
    """The argument with which the tool was called."""
    time: float
    """Seconds since the log's first event, on the clock of the event loop."""

    def __str__(self) -> str:
        return f"{label(self.tool, self.query)} {self.kind}"


@dataclass(frozen=True, slots=True)
class _Move:
    """One step of a body: of which tool, for which query, and which of its steps."""

    tool: str
    query: str
    step: int


class Log:
    """Events in order, and how many calls were inside their bodies at each moment."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._moves: list[_Move] = []
        self._clock = _Stopwatch()
        self._lock = threading.Lock()

    def enter(self, tool: str, query: str) -> None:
        """Note that a body begins."""
        with self._lock:
            self._moves.append(_Move(tool, query, +1))
            self._add("started", tool, query)

    def add(self, kind: Kind, tool: str, query: str) -> None:
        """Note that something has happened inside a body."""
        with self._lock:
            self._add(kind, tool, query)

    def leave(self, tool: str, query: str) -> None:
        """A body is over, whatever became of it."""
        with self._lock:
            self._moves.append(_Move(tool, query, -1))

    def levels(self, tool: str | None, query: str | None) -> list[int]:
        """How many bodies were running after each entry and exit, from zero on."""
        with self._lock:
            steps = [move.step for move in self._moves if _fits(move, tool, query)]
        return list(accumulate(steps, initial=0))

    def select(self, kind: Kind | None, tool: str | None, query: str | None) -> Iterable[Event]:
        """The events that fit; None fits all."""
        with self._lock:
            events = list(self.events)
        return (event for event in events if kind in (None, event.kind) and _fits(event, tool, query))

    def _add(self, kind: Kind, tool: str, query: str) -> None:
        self.events.append(Event(kind=kind, tool=tool, query=query, time=self._clock.read()))


class _Stopwatch:
    """Seconds since the first reading, on the event loop's clock where there is one.

    A thread cannot read the loop's clock, so it reads the machine's. The two run alike only on a real clock.
    """

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
    """A call in words: `search` or `search(tea)`."""
    return f"{tool}({query})" if query else tool


def _fits(entry: Event | _Move, tool: str | None, query: str | None) -> bool:
    return tool in (None, entry.tool) and query in (None, entry.query)
