"""Counts what happens to actors, from the events that `callboard.observe` gives."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from callboard import ActorEvent, AskEvent


@dataclass(slots=True)
class ActorRow:
    """The actors of one name: how many there are, and what they are asked."""

    alive: int = 0
    waiting: int = 0
    """Asks in their mailboxes."""
    running: int = 0
    ended: int = 0
    restarts: int = 0
    evictions: int = 0
    longest_wait: float = 0.0
    """The longest that an ask waited for its handler, in seconds."""


class ActorCounts:
    """Counts the asks and the lives of actors, by their names; an observer of actors."""

    def __init__(self) -> None:
        self._rows: dict[str, ActorRow] = {}
        self._taken: dict[int, bool] = {}
        """Of each ask that has not ended, whether its handler has begun."""
        self._lives: set[int] = set()
        """Those whose beginning was told here."""
        self._lock = threading.Lock()  # actors may live in loops and threads of their own

    def rows(self) -> Mapping[str, ActorRow]:
        """A copy of the row of each actor, as it is now; from any thread."""
        with self._lock:
            return dict(self._rows)

    def __call__(self, event: AskEvent | ActorEvent) -> None:
        """Bring the row of an actor up to date with an event of it."""
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
            return  # its beginning was not told here
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
