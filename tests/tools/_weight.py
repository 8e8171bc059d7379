"""Print the memory of a waiting call: `python -m tests.tools._weight BACKEND LIMIT`, in its own process."""

import gc
import sys
import tracemalloc
from typing import Any

import anyio

from callboard import CallContext, Limit, ToolNode, tool_call
from callboard.testing import calls

WAIT = 60
COUNT = 1250
"""At this count, sets have just grown fourfold, so the memory per call is at its maximum.

20,000 calls give the same.
"""


class Hall:
    """Tool whose calls wait until they are released."""

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
    """Return the bytes per waiting call, without the memory of the requested tool calls."""
    node_input = {"messages": [calls(*(tool_call("wait", query=str(number)) for number in range(count)))]}
    async with anyio.create_task_group() as group:
        gc.collect()
        tracemalloc.start()
        try:
            group.start_soon(hall.node.ainvoke, node_input)
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


async def main(limit: str) -> None:
    """Warm up with one call, so that one-time allocations are not counted, and then measure many."""
    with anyio.fail_after(WAIT):
        await weight(Hall(LIMITS[limit]), 1)
        print(await weight(Hall(LIMITS[limit]), COUNT))


if __name__ == "__main__":
    anyio.run(main, sys.argv[2], backend=sys.argv[1])
