"""Program whose process forks while an agent has a live run: `python -m tests.agent._forked_live_run URL`.

It prints what the child gets that speaks to the run of its parent. Tools that start processes fork in this way.
"""

import os
import sys

import anyio

from callboard import CallPolicy, ThreadBusyError, create_react_agent
from callboard.exceptions import RunNotFoundError
from callboard.testing import ScriptedModel, calls
from tests.forked import run_in_child

AT = {"configurable": {"thread_id": "1"}}
SECONDS = 30.0


async def main(url: str) -> None:
    opened = anyio.Event()

    @CallPolicy(background=True)
    async def work() -> str:
        """Work."""
        await opened.wait()
        return "worked"

    agent = create_react_agent(ScriptedModel([calls("work"), "meanwhile", "done"]), [work], checkpointer=url)

    async def speak() -> None:
        answer = "the run of another process"
        with anyio.fail_after(SECONDS):
            try:
                agent.live("1")
            except RunNotFoundError:
                try:
                    await agent.say("hello", AT)
                except ThreadBusyError:
                    answer = f"another process runs the thread; {len(agent.running())} calls run here"
        os.write(1, f"child: {answer}\n".encode())

    async with agent:
        run = await agent.start({"messages": [("user", "go")]}, AT)
        async for _, chunk in run.stream():
            if "tools" in chunk:
                break
        run_in_child(speak, "asyncio")
        opened.set()
        results = [message for message in (await run.result())["messages"] if message.text.endswith("]\nworked")]
        print(f"parent: {len(results)} result")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
