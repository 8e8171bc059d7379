"""Several processes with one server between them: in memory, or a real one."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import anyio

from callboard import CallEvent
from callboard.extend import SharedDocuments
from callboard_actors._server.documents._store import DocumentStore
from tests.server._servers import Place

from ._memory import MemoryDocuments, MemoryServer

LEASE = 0.6
"""In seconds; short, because tests wait for leases to expire."""
WAIT = 30
"""Timeout in seconds for events that should happen at once."""


class World(Protocol):
    """Server with stores."""

    def store(self, **options: Any) -> SharedDocuments:
        """Return a store that acts as a separate process."""
        ...

    def stand_still(self, store: SharedDocuments, seconds: float) -> None:
        """Let a process send nothing for a while, as if it had been stopped."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """Wait."""
        ...


class MemoryWorld:
    """Server in memory."""

    def __init__(self) -> None:
        self.server = MemoryServer()

    def store(self, **options: Any) -> MemoryDocuments:
        return MemoryDocuments(self.server, **{"lease": LEASE, **options})

    def stand_still(self, store: SharedDocuments, seconds: float) -> None:
        assert isinstance(store, MemoryDocuments)
        self.server.processes.remove(store)

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock of the server and let all processes run that can."""
        while seconds > 0:
            self.server.beat()
            self.server.ahead += min(LEASE / 3, seconds)
            seconds -= LEASE / 3
            await anyio.sleep(0.01)


class ServerWorld:
    """Real server of the tests."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def store(self, **options: Any) -> DocumentStore:
        store: DocumentStore = self._place.store("documents", **{"lease": LEASE, "patience": 10.0, **options})
        return store

    def stand_still(self, store: SharedDocuments, seconds: float) -> None:
        assert isinstance(store, DocumentStore)
        store._client().post(lambda: time.sleep(seconds))

    async def pass_time(self, seconds: float) -> None:
        await anyio.sleep(seconds)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread or a server brings about."""
    with anyio.fail_after(WAIT):
        while not condition():
            await anyio.sleep(0.002)


def noted(events: list[CallEvent]) -> list[str]:
    """Return what middleware has recorded for calls."""
    return [event.what for event in events if event.phase == "noted"]
