"""Memory of a waiting call, and of a run of an agent that waits."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import langgraph.prebuilt
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

import callboard
from callboard import CallPolicy, Limit
from callboard.testing import ScriptedModel, calls

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


def _floor(hall: Hall, message: AIMessage) -> Work:
    return floor(hall.tool, hall.wait, message)


def _callboard(hall: Hall, message: AIMessage) -> Work:
    return direct(callboard.ToolNode([hall.tool]), message)


def _in_queue(hall: Hall, message: AIMessage) -> Work:
    return direct(callboard.ToolNode([hall.tool], limit=Limit(concurrency=1)), message)


def _langgraph(hall: Hall, message: AIMessage) -> Work:
    return direct(langgraph.prebuilt.ToolNode([hall.tool]), message)


def _langgraph_in_graph(hall: Hall, message: AIMessage) -> Work:
    return in_graph(langgraph.prebuilt.ToolNode([hall.tool]), message)


Make = Callable[[Hall, AIMessage], Work]
LIMITS = {"asyncio": 4.5, "trio": 6.0}
"""Budget of a waiting call in KB, by event loop."""

PARKED_LIMITS = {"asyncio": 58.0, "trio": 77.0}
"""Budget of a parked run in KB, by event loop. In the memory of the checkpointer is its conversation, too."""

_ROWS: tuple[tuple[str, Make, tuple[str, ...], bool], ...] = (
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
            table.budgets += [
                Budget(f"{name}, {event_loop}, KB", LIMITS[event_loop], weight)
                for event_loop, weight in weights.items()
            ]
    runs = max(1, count // 10)
    weights = {backend: kilobytes(_park_runs, runs, backend) for backend in PARKED_LIMITS}
    name = "callboard agent, runs parked on a background call"
    table.add(f"{name}, {runs} runs", weights["asyncio"], weights["trio"])
    table.budgets += [
        Budget(f"{name}, {event_loop}, KB", PARKED_LIMITS[event_loop], weight) for event_loop, weight in weights.items()
    ]
    return table


@asynccontextmanager
async def _park_runs(count: int) -> AsyncGenerator[None]:
    """Start runs, and enter the block once all of them wait for a background call."""
    hall = Hall()
    model = ScriptedModel(
        [lambda messages: "done" if len(messages) > 1 else calls(("wait", {"query": "q"}))], loop=True
    )
    node = callboard.ToolNode([hall.tool], policies={"wait": CallPolicy(background=True)})
    async with callboard.create_react_agent(model, node, checkpointer=InMemorySaver()) as agent:
        runs = [
            await agent.start({"messages": [("user", "go")]}, {"configurable": {"thread_id": str(number)}})
            for number in range(count)
        ]
        while hall.started < count or len(model.requests) < 2 * count:
            await anyio.sleep(0.02)
        await anyio.wait_all_tasks_blocked()
        model.requests.clear()
        yield
        hall.open.set()
        for run in runs:
            await run.result()


def _waiting(make: Make, count: int) -> AbstractAsyncContextManager[None]:
    """Return a context in which the calls wait: in the queue of a limit, all but one. Their message is made here."""
    hall = Hall()
    return _until_released(hall, make(hall, queries(count, "wait")), 1 if make is _in_queue else count)


@asynccontextmanager
async def _until_released(hall: Hall, run_batch: Work, count: int) -> AsyncGenerator[None]:
    """Start a piece of work, and enter the block once so many of its calls are in their bodies and all others wait."""
    async with anyio.create_task_group() as group:
        group.start_soon(_run, run_batch)
        while hall.started < count:
            await anyio.sleep(0.02)
        await anyio.wait_all_tasks_blocked()
        yield
        hall.open.set()


async def _run(run_batch: Callable[[], Any]) -> None:
    await run_batch()
