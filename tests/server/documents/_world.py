"""Several processes with one server between them: in memory, or a real one."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import anyio
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from callboard import CallEvent, ToolNode
from callboard.extend import SharedDocuments
from callboard.middleware import Cache, CircuitBreaker
from callboard.testing import tool_call
from tests.helpers import ended, make
from tests.server._servers import Place

from ._memory import MemoryDocuments, MemoryServer

OPEN_FOR = 30.0
"""In seconds: how long the circuits of the tests are open."""
WAIT = 30
"""Timeout in seconds for events that should happen at once."""


class World(Protocol):
    """Server with stores, each of which acts as a separate process."""

    def store(self, **options: Any) -> SharedDocuments: ...


class MemoryWorld:
    """Server in memory."""

    def __init__(self) -> None:
        self.server = MemoryServer()

    def store(self, **options: Any) -> MemoryDocuments:
        return MemoryDocuments(self.server, **options)


class ServerWorld:
    """Real server of the tests."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def store(self, **options: Any) -> SharedDocuments:
        store: SharedDocuments = self._place.store("documents", **{"patience": 10.0, **options})
        return store


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread or a server brings about."""
    with anyio.fail_after(WAIT):
        while not condition():
            await anyio.sleep(0.002)


def noted(events: list[CallEvent]) -> list[str]:
    """Return what middleware has recorded for calls."""
    return [event.what for event in events if event.phase == "noted"]


class Tool:
    """Tool in several processes; each run has a number."""

    def __init__(self, error: Exception | None = None) -> None:
        self.runs = 0
        self.gate: anyio.Event | None = None
        self.error = error

    async def work(self, n: int = 0, host: str = "") -> str:
        """Work."""
        self.runs += 1
        run, gate = self.runs, self.gate
        if gate is not None:
            await gate.wait()
        if self.error is not None:
            raise self.error
        return f"run {run}"

    def cached(self, store: SharedDocuments, **options: Any) -> "Process[Cache]":
        """Return a process that shares results."""
        return Process(make(self.work), Cache({"work"}, shared=store, **{"key": by_number, **options}))

    def broken(self, store: SharedDocuments, **options: Any) -> "Process[CircuitBreaker]":
        """Return a process that shares open circuits."""
        options = {"minimum": 2, "open_for": OPEN_FOR, "on": OSError, **options}
        return Process(make(self.work), CircuitBreaker(shared=store, **options))


def by_number(request: Any) -> int:
    return int(request.tool_call["args"].get("n", 0))


M = TypeVar("M", Cache, CircuitBreaker)


class Process(Generic[M]):
    """Node with middleware, which stands for one process."""

    def __init__(self, tool: BaseTool, middleware: M) -> None:
        self.shares = middleware
        self.node = ToolNode([tool], middleware=[middleware], handle_tool_errors=True)
        self.answers: list[ToolMessage] = []

    async def call(self, n: int = 0, call_id: str = "1", **args: Any) -> Any:
        """Return how callboard ended a call, or otherwise the text that the model reads."""
        with anyio.fail_after(WAIT):
            result = await self.node.ainvoke([tool_call("work", call_id, n=n, **args)])
        self.answers += result["messages"]
        return ended(self.answers[-1]) or self.answers[-1].content
