"""An agent of `create_agent` that is killed repeatedly: todo list, files, a shell, and a sub-agent within a call.

The lives, their ends and their log are those of `_crash_agent`. The database is named by URL.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from langchain.agents.middleware import AgentMiddleware, ShellToolMiddleware, TodoListMiddleware
from langchain_core.messages import AIMessage, BaseMessage, message_to_dict

from callboard import Agent, create_agent
from callboard.conversations._database import LazySaver
from callboard.testing import ScriptedModel, calls, tool_call
from callboard_actors.shell import Shell

from . import _crash_agent as crash

TODOS = [{"content": "read", "status": "in_progress"}, {"content": "write", "status": "pending"}]
DONE = [{**todo, "status": "completed"} for todo in TODOS]
RAN = """echo '["ran", "{}"]' >> log"""
"""Shell command that adds a line to the log of the story."""
SCRIPT = (
    calls(tool_call("write_todos", "t1", todos=TODOS)),
    calls(
        tool_call("write_file", "w1", path="one", text="1"),
        tool_call("run", "c1", command=RAN.format("c1")),
        tool_call("start_job", "j1", command="sleep 600"),
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


class DeadlyLazySaver(crash.Deadly, LazySaver):
    """Saver whose writes count as stored when their transaction is committed, not before."""

    joined: list[Any] | None = None
    """Writes of the transaction that is open; `None` without one."""

    def put_writes(self, config: Any, writes: Any, *rest: Any) -> None:
        LazySaver.put_writes(self, config, writes, *rest)
        if self.joined is None:
            crash.note_stored(writes)
        else:
            self.joined.append(writes)
        crash.fate.point("after write")

    def together(self, work: Callable[[], None]) -> None:
        stored: list[Any] = []

        def joined() -> None:
            # Here, where the lock of the connection is held: the agent and its sub-agent write from several threads.
            self.joined = stored
            work()
            self.joined = None

        crash.fate.point("before write")
        super().together(joined)
        for writes in stored:
            crash.note_stored(writes)
        crash.fate.point("after commit")


class Noted(AgentMiddleware[Any, Any, Any]):
    """Middleware with a point at each of its hooks, and a note of each call."""

    def before_model(self, state: Any, runtime: Any) -> None:
        crash.fate.point("before the model")

    def after_model(self, state: Any, runtime: Any) -> None:
        crash.fate.point("after the model")

    async def aafter_model(self, state: Any, runtime: Any) -> None:
        crash.fate.point("after the model")

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        with noted(request.tool_call["id"]):
            return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        with noted(request.tool_call["id"]):
            return await handler(request)


@contextmanager
def noted(call_id: str) -> Iterator[None]:
    crash.fate.point("before body")
    crash.fate.note("started", call_id)
    yield
    crash.fate.note("ended", call_id)
    crash.fate.point("after body")


def next_reply(script: Sequence[AIMessage], messages: list[BaseMessage]) -> AIMessage:
    said = script[sum(isinstance(message, AIMessage) for message in messages)]
    crash.fate.note("asked", said.content or said.tool_calls[0]["id"], [message_to_dict(one) for one in messages])
    crash.fate.point("in the model")
    return said


def replies(script: Sequence[AIMessage]) -> ScriptedModel:
    return ScriptedModel([partial(next_reply, script)], loop=True)


def made(directory: Path, checkpointer: Any) -> Agent:
    async def write_file(path: str, text: str) -> str:
        """Write a file."""
        (directory / path).write_text(text)
        crash.fate.point("in body")
        return f"{path} is written"

    async def look_up(word: str) -> str:
        """Look a word up."""
        await anyio.lowlevel.checkpoint()
        crash.fate.point("in a body of the sub-agent")
        return f"{word} is known"

    around = [Noted(), ShellToolMiddleware(directory)]
    helper = create_agent(replies(RESEARCH), [look_up], middleware=around, name="helper", on_unknown="rerun")

    async def research(topic: str) -> str:
        """Find something out."""
        return str((await helper.ainvoke({"messages": [("user", topic)]}))["messages"][-1].content)

    return create_agent(
        replies(SCRIPT),
        [write_file, research, Shell(directory, unrestricted=True)],
        middleware=[Noted(), TodoListMiddleware()],
        checkpointer=checkpointer,
        on_unknown="rerun",
    )


async def play(agent: Agent, durability: Any, entry: str = "ainvoke") -> Any:
    """Do the remaining work, with `ainvoke` or with `invoke` in a thread; return the state at the end."""
    given: Any = {"messages": [("user", "go")]}
    while (state := await agent.aget_state(crash.CONFIG)).next or not state.values.get("messages"):
        crash.note_stored([state.values, [task.result for task in state.tasks]], "found")
        arguments = (None if state.next else given, crash.CONFIG)
        if entry == "invoke":
            await anyio.to_thread.run_sync(partial(agent.invoke, *arguments, durability=durability))
        else:
            await agent.ainvoke(*arguments, durability=durability)
    return state


async def live(database: Path, saver: str, durability: Any) -> None:
    async with made(database.parent, f"sqlite:///{database}") as agent:
        agent.checkpointer.__class__ = DeadlyLazySaver
        with anyio.fail_after(60):
            state = await play(agent, durability)
    crash.fate.note("todos", state.values["todos"])
    crash.fate.note("files", {name: (database.parent / name).read_text() for name in ("one", "two", "three")})
    crash.fate.note("conversation", [message_to_dict(message) for message in state.values["messages"]])


def in_fork(where: str, *world: Any) -> None:
    crash.live, crash.AGENT, crash.FAR = live, None, 40
    crash.play = lambda saver, durability: play(made(Path(where), saver), durability)
    crash.in_fork(where, *world)
