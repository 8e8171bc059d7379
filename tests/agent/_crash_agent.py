"""An agent of `create_react_agent` for `_crashes`: two turns, a tool that blocks its thread, and a question."""

from pathlib import Path
from typing import Any

import anyio.lowlevel
from langchain_core.messages import AIMessage
from langgraph.types import interrupt

from callboard import create_react_agent, tool_call
from callboard.testing import calls
from tests.helpers import make, make_sync

from . import _crashes as crashes

SCRIPT = (
    calls(
        tool_call("quick", "a1", name="a1"), tool_call("blocking", "a2", name="a2"), tool_call("ask", "a3", name="a3")
    ),
    calls(tool_call("quick", "b1", name="b1"), tool_call("quick", "b2", name="b2")),
    AIMessage("done"),
    calls(tool_call("blocking", "c1", name="c1"), tool_call("quick", "c2", name="c2")),
    AIMessage("all done"),
)


async def quick(name: str) -> str:
    with crashes.note_body(name):
        await anyio.lowlevel.checkpoint()
        crashes.fate.point("in body")
    return f"{name} is done"


def blocking(name: str) -> str:
    with crashes.note_body(name):
        crashes.fate.point("in body")
    return f"{name} is done"


async def ask(name: str) -> str:
    crashes.fate.note("started", name)
    answer = interrupt(f"{name}?")
    crashes.fate.point("after answer")
    crashes.fate.note("ended", name)
    return f"{name} is {answer}"


TOOLS = [make(quick), make_sync(blocking), make(ask)]


def make_agent(_: Path, checkpointer: Any) -> Any:
    return create_react_agent(crashes.replies(SCRIPT), TOOLS, checkpointer=checkpointer, on_unknown="rerun")


WORLD = crashes.World(make_agent, questions=("first", "second"), far=16)
