"""What an actor weighs while nobody asks it, and what an ask leaves to the garbage collector."""

import contextlib
import gc
import tracemalloc
from typing import Any

import anyio
import pytest
from tests.helpers import litter

from callboard import Actor, Reply, Supervisor, ToolNode, child, handler, running
from callboard.testing import calls, tool_call

WAIT = 120
COUNT = 1000
AT_MOST = 10 * 1024
"""Bytes."""


class Desk(Actor):
    """Handlers of every kind."""

    @handler
    async def work(self, query: str) -> str:
        """Answer."""
        return query

    @handler(group="reads")
    async def read(self, query: str) -> str:
        """Answer, beside others."""
        return query

    @handler(deferred=True)
    async def later(self, reply: Reply[str], query: str) -> None:
        """Answer by a reply."""
        reply.send(query)

    @handler
    async def fail(self, query: str) -> str:
        """Fail."""
        raise ValueError(query)

    @handler
    async def slow(self, query: str) -> str:
        """Answer too late."""
        await anyio.sleep(30)
        return query


class Alone(Actor):
    """One handler, which runs alone."""

    @handler
    async def work(self, query: str) -> str:
        """Answer."""
        return query


async def weight(kind: type[Alone] | type[Desk], count: int) -> float:
    """Bytes for each of so many actors that have answered once and wait."""
    children = [child(kind, name=str(number)) for number in range(count)]
    gc.collect()
    tracemalloc.start()
    try:
        async with Supervisor(children) as tree:
            async with anyio.create_task_group() as group:
                for unit in tree._tree.units:  # type: ignore[union-attr]
                    group.start_soon(unit.cell.ask, kind._handlers["work"], ("x",), {})  # type: ignore[attr-defined]
            gc.collect()
            return tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [pytest.param(Alone, marks=pytest.mark.exhaustive), Desk])
@pytest.mark.exhaustive
async def test_an_idle_actor_weighs_at_most_10_kilobytes(kind: type[Alone] | type[Desk]) -> None:
    """100,000 of them are 1 GB at most, on either loop."""
    with anyio.fail_after(WAIT):
        await weight(kind, 1)  # what is made once is no actor's
        assert await weight(kind, COUNT) <= AT_MOST


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", ["work", "read", "later", "fail"])
async def test_an_ask_leaves_nothing_in_cycles(name: str) -> None:
    """Whatever it came to, what it made is gone with it."""
    with anyio.fail_after(WAIT):
        async with running(Desk) as desk:
            for _ in range(2):  # the first one is to warm up
                gc.collect()
                for _ in range(5):
                    with pytest.raises(ValueError) if name == "fail" else contextlib.nullcontext():
                        await getattr(desk, name)("tea")
            assert litter() == []


@pytest.mark.usefixtures("no_collector")
async def test_an_ask_that_is_cancelled_leaves_nothing_in_cycles() -> None:
    """Neither one that runs nor those that wait behind it."""

    async def give_up(desk: Any) -> None:
        with anyio.move_on_after(1):
            await desk.slow("tea")

    with anyio.fail_after(WAIT):
        async with running(Desk) as desk:
            for _ in range(2):
                gc.collect()
                await give_up(desk)
            assert litter() == []


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", ["work", "later", "fail"])
async def test_a_batch_of_an_actors_tools_leaves_nothing_in_cycles(name: str) -> None:
    """As one of plain tools."""
    given = {"messages": [calls(*(tool_call(name, query="tea") for _ in range(5)))]}
    with anyio.fail_after(WAIT):
        async with ToolNode([Desk()], handle_tool_errors=True) as node:
            for _ in range(2):
                gc.collect()
                await node.ainvoke(given)
            assert litter() == []
