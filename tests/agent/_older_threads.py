"""Threads in the stored format of 0.1.0, and an agent that can continue them.

python -c "from tests.agent._older_threads import write; write()"

writes `stored_threads.sql` again with the installed version. Use it only after a deliberate change of the stored
format, and keep the former file with its tests: threads are stored for longer than a version.

The stored approval names the function of its tool, `pay` of this module, so this module keeps its name.
"""

import os
import sqlite3
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import anyio
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command, Send, interrupt

from callboard import CallPolicy, ToolNode, create_react_agent, tool_call
from callboard.middleware import RequireApproval
from callboard.testing import ScriptedModel, calls

DUMP = Path(__file__).with_name("stored_threads.sql")

ASKED = {
    "done": calls(tool_call("quick", "d1", name="d1")),
    "waits": calls(tool_call("quick", "w1", name="w1"), tool_call("twice", "w2", name="w2")),
    "failed": calls(tool_call("quick", "f1", name="f1"), tool_call("fragile", "f2", name="f2")),
    "killed": calls(tool_call("quick", "k1", name="k1"), tool_call("pay", "k2", name="k2")),
    "sent": calls(tool_call("send", "s1", name="s1")),
}
"""The replies of the model, by thread."""


def first_input(thread: str) -> Any:
    """Return the first input of a thread."""
    return {"messages": [("user", thread)]}


def config(thread: str) -> Any:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread}}


def agent_of(saver: Any, *, doomed: bool = False) -> Any:
    """Return the agent of all these threads.

    Args:
        saver: contains the threads.
        doomed: whether fallible bodies fail, and the process ends in the body `pay`.
    """

    async def quick(name: str) -> str:
        """Be quick."""
        return f"{name} is done"

    async def twice(name: str) -> str:
        """Ask two questions."""
        return f"{name}: {interrupt('first?')}, {interrupt('second?')}"

    async def fragile(name: str) -> str:
        """Fail."""
        if doomed:
            await anyio.sleep(0.2)
            raise OSError("broken")
        return f"{name} is whole"

    async def pay(name: str) -> str:
        """Pay; once is enough."""
        if doomed:
            await anyio.sleep(0.2)
            os._exit(7)
        return f"{name} is paid"

    async def send(name: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Send the tools node a call."""
        further_call = Send("tools", [tool_call("twice", "s2", name="s2")])
        return Command(update={"messages": [ToolMessage("sent", tool_call_id=tool_call_id)]}, goto=[further_call])

    def reply(messages: Sequence[BaseMessage]) -> AIMessage:
        # The last message is one of the model itself if only a call that a tool has sent was answered since.
        return ASKED[str(messages[-1].content)] if isinstance(messages[-1], HumanMessage) else AIMessage("done")

    tools = [StructuredTool.from_function(coroutine=function) for function in (quick, twice, fragile, pay, send)]
    node = ToolNode(
        tools, policies={"pay": CallPolicy(on_unknown="ask")}, on_error="finish", middleware=[RequireApproval(["pay"])]
    )
    return create_react_agent(ScriptedModel([reply], loop=True), node, checkpointer=saver)


async def _live(agent: Any) -> None:
    """Write all threads; the process ends in the last one."""
    await agent.ainvoke(first_input("done"), config("done"), durability="sync")
    await agent.ainvoke(first_input("done"), config("done"), durability="async")
    waiting = await agent.ainvoke(first_input("waits"), config("waits"), durability="sync")
    (question,) = waiting["__interrupt__"]
    await agent.ainvoke(Command(resume={question.id: "one"}), config("waits"), durability="sync")
    with suppress(OSError):
        await agent.ainvoke(first_input("failed"), config("failed"), durability="sync")
    await agent.ainvoke(first_input("sent"), config("sent"), durability="sync")
    (question,) = (await agent.aget_state(config("sent"))).interrupts
    await agent.ainvoke(Command(resume={question.id: "one"}), config("sent"), durability="sync")
    waiting = await agent.ainvoke(first_input("killed"), config("killed"), durability="sync")
    (question,) = waiting["__interrupt__"]
    await agent.ainvoke(Command(resume={question.id: {"type": "accept"}}), config("killed"), durability="sync")


def load(path: Path) -> sqlite3.Connection:
    """Create a database with the threads at a path."""
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.executescript(DUMP.read_text())
    return connection


def write() -> None:
    """Write the threads and dump them."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "db"
        if child := os.fork():
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        else:
            warnings.simplefilter("ignore")
            with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
                anyio.run(_live, agent_of(SqliteSaver(connection), doomed=True))
            os._exit(1)
        with closing(sqlite3.connect(path)) as connection:
            DUMP.write_text("\n".join(connection.iterdump()) + "\n")
