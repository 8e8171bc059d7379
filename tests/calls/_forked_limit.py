"""Program that forks while its calls hold the permits of a limit: `python -m tests.calls._forked_limit BACKEND`.

It prints the results of a call in the child, and of those in the parent.
"""

import os
import sys
import threading
import warnings

import anyio

from callboard import CallPolicy, Limit, ToolNode, tool_call

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

        async def call_here() -> None:
            await call("parent", waits=True)

        group.start_soon(call_here)
        await begun.wait()
        await anyio.wait_all_tasks_blocked()  # the second call waits for the permit
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, since Python 3.12
        child = os.fork()
        if not child:
            # The child has a copy of the running event loop's state, so its own loop needs a thread of its own.
            async def call_there() -> None:
                await call("child", waits=False)

            thread = threading.Thread(target=lambda: anyio.run(call_there, backend=backend))
            thread.start()
            thread.join()
            os._exit(0)
        os.waitpid(child, 0)
        opened.set()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], backend=sys.argv[1])
