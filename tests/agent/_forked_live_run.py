"""Program whose process forks while an agent has a live run: `python -m tests.agent._forked_live_run URL`.

It prints what the child gets that speaks to the run of its parent. Tools that start processes fork in this way.
"""

import os
import sys
import threading
import warnings

import anyio

from callboard import CallPolicy, ThreadBusyError, create_react_agent
from callboard.exceptions import RunNotFoundError
from callboard.testing import ScriptedModel, calls

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

    async def speak() -> str:
        with anyio.fail_after(SECONDS):
            try:
                agent.live("1")
            except RunNotFoundError:
                try:
                    await agent.say("hello", AT)
                except ThreadBusyError:
                    return f"another process runs the thread; {len(agent.running())} calls run here"
        return "the run of another process"

    async with agent:
        run = await agent.start({"messages": [("user", "go")]}, AT)
        async for _, chunk in run.stream():
            if "tools" in chunk:
                break
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, since Python 3.12
        child = os.fork()
        if not child:
            # The child has a copy of the running event loop's state, so its own loop needs a thread of its own.
            thread = threading.Thread(target=lambda: os.write(1, f"child: {anyio.run(speak)}\n".encode()))
            thread.start()
            thread.join()
            os._exit(0)
        os.waitpid(child, 0)
        opened.set()
        results = [message for message in (await run.result())["messages"] if message.text.endswith("]\nworked")]
        print(f"parent: {len(results)} result")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
