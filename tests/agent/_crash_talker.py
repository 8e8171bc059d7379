"""Agent for `_crashes` to which words are said while it works: by its own calls, in the foreground and background.

Stories with an even number have an agent of `create_react_agent`, the others one of `create_agent`.
"""

import os
from itertools import count
from pathlib import Path
from typing import Any

import anyio
from langchain_core.messages import AIMessage

from callboard import CallPolicy, create_agent, create_react_agent, tool_call
from callboard.testing import calls
from tests.helpers import make

from . import _crashes as crashes
from ._savers import AT

SCRIPT = (
    calls(tool_call("work", "a1", name="a1"), tool_call("build", "b1", name="b1")),
    calls(tool_call("work", "a2", name="a2")),
    *(AIMessage(f"heard {number}") for number in range(50)),
)
"""A run has as many texts as it reads messages at its end."""
numbers = count(1)


def make_agent(directory: Path, checkpointer: Any) -> Any:
    async def speak(name: str) -> None:
        word = f"{name} {os.getpid()} {next(numbers)}"
        crashes.fate.note("saying", word)
        crashes.fate.point("before say")
        if await agent.say(word, AT) is not None:
            crashes.fate.note("said", word)
        crashes.fate.point("after say")

    async def work(name: str) -> str:
        with crashes.note_body(name):
            await speak(name)
        return f"{name} is done"

    async def build(name: str) -> str:
        with crashes.note_body(name):
            await speak(name)
            await anyio.sleep(0.01)
            await speak(name)
        return f"{name} is built"

    tools = [make(work), CallPolicy(background=True)(make(build))]
    is_even = not directory.name.isdigit() or int(directory.name) % 2 == 0
    new_agent: Any = create_react_agent if is_even else create_agent
    agent = new_agent(crashes.replies(SCRIPT), tools, checkpointer=checkpointer)
    return agent


WORLD = crashes.World(make_agent, far=30, resumes=True)
