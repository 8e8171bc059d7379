"""Program that reads the state of a thread in several tasks while it closes the agent again and again.

`python -m tests.agent._closed_agent URL BACKEND` prints the number of states that were read.
"""

import sys

import anyio

from callboard import create_react_agent
from callboard.testing import ScriptedModel

READS = 300
READERS = 8


async def main(url: str) -> None:
    agent = create_react_agent(ScriptedModel(["hello " + "x" * 5000], loop=True), [], checkpointer=url)
    config = {"configurable": {"thread_id": "1"}}
    for _ in range(10):
        await agent.ainvoke({"messages": [("user", "hi")]}, config)
    counts = []

    async def read() -> None:
        for _ in range(READS):
            state = await agent.aget_state(config)
            counts.append(len(state.values["messages"]))

    async def close() -> None:
        while True:
            await anyio.sleep(0.002)
            await agent.aclose()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(close)
            async with anyio.create_task_group() as readers:
                for _ in range(READERS):
                    readers.start_soon(read)
            group.cancel_scope.cancel()
    print(counts.count(20))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], backend=sys.argv[2])
