"""Program whose agent is used before and after forks of the process: `python -m tests.agent._forked_agent URL`.

Each process prints how many of its turns had their own results. Web servers fork in this way after they have loaded
the application, such as gunicorn with `--preload`.
"""

import os
import sys

import anyio

from callboard import create_react_agent
from callboard.testing import ScriptedModel, calls

CHILDREN = 3
TURNS = 12


async def work(text: str) -> str:
    """Do the work."""
    return f"result of {text}"


def reply(messages):
    last = messages[-1]
    return calls(("work", {"text": last.text})) if last.type == "human" else f"done: {last.text}"


def main(url: str) -> None:
    agent = create_react_agent(ScriptedModel([reply], loop=True), [work], checkpointer=url)

    async def take_turns(name: str) -> int:
        good = 0
        for turn in range(TURNS):
            config = {"configurable": {"thread_id": f"{name}-{turn % 2}"}}
            with anyio.fail_after(30):
                state = await agent.ainvoke({"messages": [("user", f"{name}-{turn}")]}, config)
            results = [message.text for message in state["messages"] if message.type == "tool"]
            expected = [f"result of {name}-{earlier}" for earlier in range(turn % 2, turn + 1, 2)]
            good += results == expected
        return good

    anyio.run(take_turns, "before")
    children = []
    for number in range(CHILDREN):
        child = os.fork()
        if not child:
            good = anyio.run(take_turns, f"child {number}")
            os.write(1, f"child: {good} of {TURNS}\n".encode())  # one write: other children write beside it
            os._exit(0)
        children.append(child)
    print(f"parent: {anyio.run(take_turns, 'parent')} of {TURNS}", flush=True)
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))


if __name__ == "__main__":
    main(sys.argv[1])
