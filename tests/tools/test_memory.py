"""What a call weighs while it waits; an agent's host may hold very many of them."""

import gc
import tracemalloc
from typing import Any

import anyio
import pytest

from callboard import CallContext, Limit, ToolNode
from callboard.testing import calls, tool_call

WAIT = 120
COUNT = 1250
"""Sets have just grown fourfold then, so that a call weighs as much as it ever does; 20,000 weigh the same."""
AT_MOST = 6 * 1024
"""Bytes; LangGraph's call has 9.7 KB on asyncio."""


class Hall:
    """Calls that wait until they may go."""

    def __init__(self, limit: Limit | None) -> None:
        self.node = ToolNode([self.wait], limit=limit)
        self.inside = 0
        self.open = anyio.Event()

    async def wait(self, query: str) -> str:
        """Wait."""
        self.inside += 1
        await self.open.wait()
        return query

    def all_wait(self, count: int) -> bool:
        return self.inside + self.node.statistics().waiting >= count


async def weight(hall: Hall, count: int) -> float:
    """Bytes for each of so many calls that wait, without the tool calls that were asked for."""
    given = {"messages": [calls(*(tool_call("wait", query=str(number)) for number in range(count)))]}
    async with anyio.create_task_group() as group:
        gc.collect()
        tracemalloc.start()
        try:
            group.start_soon(hall.node.ainvoke, given)
            while not hall.all_wait(count):
                await anyio.sleep(0.02)
            gc.collect()
            return tracemalloc.get_traced_memory()[0] / count
        finally:
            tracemalloc.stop()
            hall.open.set()


def by_user(call: Any, context: CallContext) -> Any:
    return context.config["configurable"].get("user")


LIMITS = {"in their bodies": None, "in a queue": Limit(concurrency=1), "in a user's queue": Limit(1, key=by_user)}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.exhaustive
async def test_a_waiting_call_weighs_at_most_6_kilobytes(limit: Limit | None) -> None:
    """100,000 calls that wait are 600 MB, on either loop, whether for what their bodies do or for a place."""
    with anyio.fail_after(WAIT):
        for count in (1, COUNT):  # what is made once is no call's
            bytes_each = await weight(Hall(limit), count)
    assert bytes_each <= AT_MOST
