"""Memory of a waiting call."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import langgraph.prebuilt
from langchain_core.tools import StructuredTool

import callboard
from callboard import Limit

from ._contestants import Work, direct, floor, in_graph, queries
from ._measure import Budget, Table, kilobytes


class Hall:
    """Tool whose calls wait until they are released, with their number."""

    def __init__(self) -> None:
        self.started = 0
        self.open = anyio.Event()
        self.tool = StructuredTool.from_function(coroutine=self.wait, name="wait", description="Wait.")

    async def wait(self, query: str) -> str:
        self.started += 1
        await self.open.wait()
        return query


@dataclass(frozen=True, slots=True)
class Scene:
    """Way to run waiting calls, and the number of them that wait now."""

    work: Work
    waiting: Callable[[], int]


def _floor(hall: Hall, count: int) -> Scene:
    return Scene(floor(hall.tool, hall.wait, queries(count, "wait")), lambda: hall.started)


def _callboard(hall: Hall, count: int) -> Scene:
    return Scene(direct(callboard.ToolNode([hall.tool]), queries(count, "wait")), lambda: hall.started)


def _in_queue(hall: Hall, count: int) -> Scene:
    node = callboard.ToolNode([hall.tool], limit=Limit(concurrency=1))

    def waiting() -> int:
        statistics = node.statistics()
        return statistics.waiting + statistics.running

    return Scene(direct(node, queries(count, "wait")), waiting)


def _langgraph(hall: Hall, count: int) -> Scene:
    return Scene(direct(langgraph.prebuilt.ToolNode([hall.tool]), queries(count, "wait")), lambda: hall.started)


def _langgraph_in_graph(hall: Hall, count: int) -> Scene:
    return Scene(in_graph(langgraph.prebuilt.ToolNode([hall.tool]), queries(count, "wait")), lambda: hall.started)


_ROWS: tuple[tuple[str, Callable[[Hall, int], Scene], tuple[str, ...], bool], ...] = (
    ("floor, in their bodies", _floor, ("asyncio", "trio"), False),
    ("callboard ToolNode, in their bodies", _callboard, ("asyncio", "trio"), True),
    ("callboard ToolNode, in the queue of `Limit(concurrency=1)`", _in_queue, ("asyncio", "trio"), True),
    ("LangGraph ToolNode, in their bodies", _langgraph, ("asyncio",), False),
    ("LangGraph ToolNode in a graph, in their bodies", _langgraph_in_graph, ("asyncio",), False),
)


def waiting_calls(*, count: int) -> Table:
    """Measure concurrently waiting calls with `tracemalloc`, without the memory of the requested tool calls."""
    table = Table(f"Memory of {count} waiting calls", ["KB a call", "asyncio", "trio"])
    for name, make, backends, promised in _ROWS:
        weights = {backend: kilobytes(partial(_waiting, make), count, backend) for backend in backends}
        table.add(name, weights["asyncio"], weights.get("trio"))
        if promised:
            table.budgets += [Budget(f"{name}, {backend}, KB", 6.0, weight) for backend, weight in weights.items()]
    return table


@asynccontextmanager
async def _waiting(make: Callable[[Hall, int], Scene], count: int) -> AsyncGenerator[None]:
    """Run the calls, and enter the block once all of them wait."""
    hall = Hall()
    scene = make(hall, count)
    async with anyio.create_task_group() as group:
        group.start_soon(_run, scene.work)
        while scene.waiting() < count:
            await anyio.sleep(0.02)
        yield
        hall.open.set()


async def _run(work: Callable[[], Any]) -> None:
    await work()
