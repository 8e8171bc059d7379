"""Programs start event loops again and again: `asyncio.run` for each task, or for each sync call."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import trio

from callboard import ToolNode, tool_call


async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def loops_of(run: Callable[[Any], object], current: Callable[[], Any]) -> list["weakref.ref[Any]"]:
    """Run calls in several event loops, one after the other, and return references to the loops."""
    node, loops = ToolNode([double]), list["weakref.ref[Any]"]()

    async def main() -> None:
        loops.append(weakref.ref(current()))
        await node.ainvoke([tool_call("double", "1", number=1)])

    for _ in range(5):
        run(main)
    gc.collect()
    return loops


@pytest.mark.parametrize(
    ("run", "current"),
    [
        pytest.param(lambda main: asyncio.run(main()), asyncio.get_running_loop, id="asyncio"),
        pytest.param(trio.run, trio.lowlevel.current_trio_token, id="trio"),
    ],
)
def test_an_event_loop_that_has_ended_is_not_kept(run: Any, current: Callable[[], Any]) -> None:
    """Each loop with its sockets would stay in memory; only the last one may, as the cache of a thread."""
    assert [loop() for loop in loops_of(run, current)[:-1]] == [None] * 4
