"""Program that forks while its calls hold the permits of a limit: `python -m tests.calls._forked_limit BACKEND`.

It prints the results of a call in the child, and of those in the parent.
"""

import os
import sys
from functools import partial

import anyio

from callboard import CallPolicy, Limit, ToolNode, tool_call
from tests.forked import run_in_child

SECONDS = 10.0


async def main(backend: str) -> None:
    begun, opened = anyio.Event(), anyio.Event()

    async def work(waits: bool) -> str:
        """Work."""
        if waits:
            begun.set()
            await opened.wait()
        return "worked"

    node = ToolNode([work], policies={"work": CallPolicy(limit=Limit(concurrency=1))})

    async def call(name: str, *, waits: bool) -> None:
        with anyio.fail_after(SECONDS):
            state = await node.ainvoke([tool_call("work", "1", waits=waits), tool_call("work", "2", waits=waits)])
        os.write(1, f"{name}: {[message.text for message in state['messages']]}\n".encode())

    async with anyio.create_task_group() as group:
        group.start_soon(partial(call, "parent", waits=True))
        await begun.wait()
        await anyio.wait_all_tasks_blocked()  # the second call waits for the permit
        run_in_child(partial(call, "child", waits=False), backend)
        opened.set()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], backend=sys.argv[1])
