"""An agent of `create_agent` for `_crashes`: todo list, files, a shell, and a sub-agent within a call."""

from pathlib import Path
from typing import Any

import anyio
from langchain.agents.middleware import AgentMiddleware, ShellToolMiddleware, TodoListMiddleware
from langchain_core.messages import AIMessage

from callboard import Agent, create_agent, tool_call
from callboard.testing import calls

from . import _crashes as crashes

TODOS = [{"content": "read", "status": "in_progress"}, {"content": "write", "status": "pending"}]
DONE = [{**todo, "status": "completed"} for todo in TODOS]
RAN = """echo '["ran", "{}"]' >> log"""
"""Shell command that adds a line to the log of the story."""
SCRIPT = (
    calls(tool_call("write_todos", "t1", todos=TODOS)),
    calls(
        tool_call("write_file", "w1", path="one", text="1"),
        tool_call("run", "c1", command=RAN.format("c1")),
        tool_call("research", "r1", topic="tea"),
        tool_call("write_file", "w2", path="two", text="2"),
    ),
    calls(
        tool_call("write_todos", "t2", todos=DONE),
        tool_call("run", "c2", command=RAN.format("c2")),
        tool_call("write_file", "w3", path="three", text="3"),
    ),
    AIMessage("done"),
)
RESEARCH = (
    calls(
        tool_call("look_up", "s1", word="tea"),
        tool_call("shell", "h1", command=RAN.format("h1")),
        tool_call("look_up", "s2", word="pot"),
    ),
    AIMessage("found"),
)


class Noted(AgentMiddleware[Any, Any, Any]):
    """Middleware with a point at each of its hooks, and a note of each call."""

    def before_model(self, state: Any, runtime: Any) -> None:
        crashes.fate.point("before the model")

    def after_model(self, state: Any, runtime: Any) -> None:
        crashes.fate.point("after the model")

    async def aafter_model(self, state: Any, runtime: Any) -> None:
        crashes.fate.point("after the model")

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        with crashes.note_body(request.tool_call["id"]):
            return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        with crashes.note_body(request.tool_call["id"]):
            return await handler(request)


def make_agent(directory: Path, checkpointer: Any) -> Agent:
    async def write_file(path: str, text: str) -> str:
        """Write a file."""
        (directory / path).write_text(text)
        crashes.fate.point("in body")
        return f"{path} is written"

    async def run(command: str) -> str:
        """Run a command in the directory."""
        done = await anyio.run_process(command, cwd=directory)
        return f"Exit code {done.returncode}."

    async def look_up(word: str) -> str:
        """Look a word up."""
        await anyio.lowlevel.checkpoint()
        crashes.fate.point("in a body of the sub-agent")
        return f"{word} is known"

    middleware = [Noted(), ShellToolMiddleware(directory)]
    helper = create_agent(
        crashes.replies(RESEARCH), [look_up], middleware=middleware, name="helper", on_unknown="rerun"
    )

    async def research(topic: str) -> str:
        """Find something out."""
        return str((await helper.ainvoke({"messages": [("user", topic)]}))["messages"][-1].content)

    return create_agent(
        crashes.replies(SCRIPT),
        [write_file, research, run],
        middleware=[Noted(), TodoListMiddleware()],
        checkpointer=checkpointer,
        on_unknown="rerun",
    )


WORLD = crashes.World(make_agent)
