"""Promise 1: a task that is cancelled again while it waits for its work to end still waits: nothing outlives it."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from callboard import Actor, Supervisor, ToolNode, child, create_react_agent, handler, keyed
from callboard.exceptions import DrainingError
from callboard.testing import ScriptedModel, calls
from tests.helpers import ask, live_tasks, make

CALLS = [{"name": "slow", "args": {}, "id": call_id} for call_id in ("1", "2")]
"""Two calls: what waits for the first end must also wait for the second one."""


class Work:
    """Work whose parts take a second to end when they are cancelled, and the number of parts that run."""

    def __init__(self) -> None:
        self.running = 0

    async def slow(self) -> None:
        self.running += 1
        try:
            await anyio.sleep(1000)
        finally:
            await anyio.sleep(1)
            self.running -= 1


class First(Actor):
    """Actor that takes a second to stop."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def start(self) -> None:
        self._work.running += 1

    async def stop(self) -> None:
        await anyio.sleep(1)
        self._work.running -= 1

    @handler
    async def ping(self) -> None:
        """Do nothing."""


class Second(First):
    """Actor of the same kind."""


async def stream(work: Work) -> None:
    async for _ in ToolNode([make(work.slow)]).as_completed(ask(*CALLS)):
        pass


async def supervisor(work: Work) -> None:
    async with Supervisor([child(First, work), child(Second, work)]):
        await anyio.sleep(1000)


async def keyed_actors(work: Work) -> None:
    async with keyed(child(First, work)) as actors:
        await actors["a"].ping()
        await actors["b"].ping()
        await anyio.sleep(1000)


async def node_with_actors(work: Work) -> None:
    async with ToolNode([child(First, work), child(Second, work, prefix="second_")]):
        await anyio.sleep(1000)


async def started_runs(work: Work) -> None:
    model = ScriptedModel([calls("slow"), calls("slow")])
    async with create_react_agent(model, [make(work.slow)], checkpointer=InMemorySaver()) as agent:
        for thread_id in ("1", "2"):
            await agent.start({"messages": [("user", "go")]}, {"configurable": {"thread_id": thread_id}})
        await anyio.sleep(1000)


async def drain(work: Work) -> None:
    node = ToolNode([make(work.slow)])
    runs = [asyncio.ensure_future(node.ainvoke(ask(call))) for call in CALLS]
    await anyio.sleep(0.5)
    try:
        await node.drain(1000)
    finally:
        assert not work.running
        assert all(isinstance(end, DrainingError) for end in await asyncio.gather(*runs, return_exceptions=True))


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("times", [1, 2, 3, 7])
@pytest.mark.parametrize("block", [stream, supervisor, keyed_actors, node_with_actors, started_runs, drain])
async def test_a_task_that_is_cancelled_again_waits_for_its_work(
    block: Callable[[Work], Awaitable[None]], times: int
) -> None:
    """asyncio delivers each `task.cancel()` to what the task awaits, also behind a shield; users press Ctrl-C twice."""
    work, before = Work(), live_tasks()
    task = asyncio.ensure_future(block(work))
    await anyio.sleep(2)
    assert work.running == 2
    for _ in range(times):
        task.cancel()
        await anyio.sleep(0.1)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.running == 0
    assert live_tasks() == before
