"""The timeouts of a call that an actor handles: they are for the handler, and not for the wait for its turn."""

from typing import Any

import anyio
import pytest

from callboard import Actor, CallPolicy, ToolNode, handler, progress, remaining
from callboard.testing import tool_call

begun: list[tuple[float, float]] = []
"""When handlers began, and how much time they had left."""


@pytest.fixture(autouse=True)
def _nothing_begun() -> None:
    begun.clear()


class Slow(Actor):
    """Takes its time, one call after another."""

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


@pytest.mark.backends("asyncio")
async def test_a_timeout_begins_when_the_handler_does() -> None:
    """Ten calls of 3 s in a row, each with 4 s: none is late because of those before it."""
    node = ToolNode([Slow()], policies={"work": CallPolicy(timeout=4.0)})

    with anyio.fail_after(100):
        async with node:
            found = await node.ainvoke(work(*[3.0] * 10))

    assert contents(found) == ["done"] * 10
    assert begun == [(3.0 * turn, 4.0) for turn in range(10)]


async def test_one_that_hangs_is_ended_and_the_others_have_their_time() -> None:
    """Its own timeout frees the actor; nobody is told that it was late who had not begun."""
    node = ToolNode([Slow()], policies={"work": CallPolicy(timeout=4.0)})

    with anyio.fail_after(1000):
        async with node:
            hangs = await node.ainvoke(work(500.0, 3.0, 500.0, 3.0))

    assert sorted(contents(hangs)) == sorted(
        ["done", "done", *["Error: Tool 'work' did not finish within its timeout of 4 s."] * 2]
    )


@pytest.mark.filterwarnings("ignore:.*timeout is never over:callboard.CallboardWarning")
async def test_a_budget_counts_the_wait_too() -> None:
    """It is for the whole call; who is late before it has begun never begins."""
    node = ToolNode([Slow()], policies={"work": CallPolicy(timeout=100.0, budget=5.0)})

    with anyio.fail_after(100):
        async with node:
            found = await node.ainvoke(work(4.0, 4.0, 4.0))

    assert contents(found).count("done") == 1
    assert len(begun) == 2
    assert sum("its budget of 5 s was spent" in text for text in contents(found)) == 2


async def test_an_idle_timeout_begins_when_the_handler_does_and_progress_keeps_it_alive() -> None:
    """A handler gives signs of life as a tool does, though it runs in another task."""
    node = ToolNode([Slow()], policies={"work": CallPolicy(idle_timeout=2.0)})

    with anyio.fail_after(100):
        async with node:
            alive = await node.ainvoke(work(1.5, 1.5, 1.5, signs=4))
            dead = await node.ainvoke(work(3.0))

    assert contents(alive) == ["done"] * 3
    assert contents(dead) == ["Error: Tool 'work' was given up: it gave no sign of life for 2 s."]
    assert {left for _, left in begun} == {2.0}
