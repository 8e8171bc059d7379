"""Timeouts of calls that an actor handles: the time in the queue does not count."""

from typing import Any

import anyio
import pytest

from callboard import Actor, CallPolicy, ToolNode, handler, progress, remaining
from callboard.testing import tool_call

begun: list[tuple[float, float]] = []
"""Start time and remaining time of each handler call."""


@pytest.fixture(autouse=True)
def _nothing_begun() -> None:
    begun.clear()


class Slow(Actor):
    """Slow actor that handles one call at a time."""

    async def start(self) -> None:
        self.since = anyio.current_time()

    @handler
    async def work(self, seconds: float, signs: int = 0) -> str:
        """Work."""
        begun.append((round(anyio.current_time() - self.since, 3), round(remaining(), 3)))
        for _ in range(signs):
            await anyio.sleep(seconds)
            progress()
        await anyio.sleep(seconds)
        return "done"


def contents(found: Any) -> list[Any]:
    return [message.content for message in found["messages"]]


def work(*seconds: float, signs: int = 0) -> list[Any]:
    return [tool_call("work", str(number), seconds=each, signs=signs) for number, each in enumerate(seconds)]


@pytest.mark.hangs_after(100)
@pytest.mark.backends("asyncio")
async def test_a_timeout_begins_when_the_handler_does() -> None:
    node = ToolNode([Slow()], policies={"work": CallPolicy(timeout=4.0)})

    async with node:
        found = await node.ainvoke(work(*[3.0] * 10))

    assert contents(found) == ["done"] * 10
    assert begun == [(3.0 * turn, 4.0) for turn in range(10)]


@pytest.mark.hangs_after(1000)
async def test_one_that_hangs_is_ended_and_the_others_have_their_time() -> None:
    node = ToolNode([Slow()], policies={"work": CallPolicy(timeout=4.0)})

    async with node:
        hangs = await node.ainvoke(work(500.0, 3.0, 500.0, 3.0))

    assert sorted(contents(hangs)) == sorted(
        ["done", "done", *["Error: Tool 'work' did not finish within its timeout of 4 s."] * 2]
    )


@pytest.mark.hangs_after(100)
@pytest.mark.filterwarnings("ignore:.*timeout is never over:callboard.CallboardWarning")
async def test_a_budget_counts_the_wait_too() -> None:
    """A budget covers the whole call, so a call whose budget ends in the queue never begins."""
    node = ToolNode([Slow()], policies={"work": CallPolicy(timeout=100.0, budget=5.0)})

    async with node:
        found = await node.ainvoke(work(4.0, 4.0, 4.0))

    assert contents(found).count("done") == 1
    assert len(begun) == 2
    assert sum("its budget of 5 s was spent" in text for text in contents(found)) == 2


@pytest.mark.hangs_after(100)
async def test_an_idle_timeout_begins_when_the_handler_does_and_progress_keeps_it_alive() -> None:
    """Progress of a handler resets the idle timeout of its call, although the handler runs in another task."""
    node = ToolNode([Slow()], policies={"work": CallPolicy(idle_timeout=2.0)})

    async with node:
        alive = await node.ainvoke(work(1.5, 1.5, 1.5, signs=4))
        dead = await node.ainvoke(work(3.0))

    assert contents(alive) == ["done"] * 3
    assert contents(dead) == ["Error: Tool 'work' was given up: it gave no sign of life for 2 s."]
    assert {left for _, left in begun} == {2.0}
