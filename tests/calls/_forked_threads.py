"""Program that forks while worker threads of a node run: `python -m tests.calls._forked_threads BACKEND`.

All threads that the node may have were given up by their calls. The child prints the result of a call of its own, and
whether a function waits there for one that has a ticket in the parent.
"""

import sys
import threading
import time
import warnings

import anyio

from callboard import ToolNode, tool_call
from callboard._calls._thread_pool import ThreadPermits
from tests.forked import run_in_child

SECONDS = 30.0
THREADS = 40
"""Number of worker threads of a node, and of calls at once."""


async def main(backend: str) -> None:
    opened = threading.Event()

    def work(waits: bool) -> str:
        """Work."""
        if waits:
            opened.wait(SECONDS)
        return "worked"

    node = ToolNode([work], timeout=0.2)

    async def results(*, waits: bool, count: int) -> list[str]:
        with anyio.fail_after(SECONDS):
            state = await node.ainvoke([tool_call("work", f"{number}", waits=waits) for number in range(count)])
        return [message.text for message in state["messages"]]

    warnings.simplefilter("ignore")  # of threads that go on
    with anyio.fail_after(SECONDS):
        while "all 40 worker threads are held" not in (last := (await results(waits=True, count=THREADS))[-1]):
            pass  # a call whose thread the system starts late gives up none
    print(f"parent: {last}", flush=True)
    permits = ThreadPermits(1)
    permits.order.ticket()  # of a function that begins in the parent, after the fork

    async def call_there() -> None:
        begin = time.monotonic()
        permits.order.ticket().wait()
        has_waited = time.monotonic() - begin > 0.5
        print(f"child: {await results(waits=False, count=1)}, waited: {has_waited}", flush=True)

    run_in_child(call_there, backend)
    opened.set()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], backend=sys.argv[1])
