"""Counts of actors and their asks, made from observed events."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from callboard import ActorEvent, AskEvent


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
