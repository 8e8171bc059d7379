"""Program whose agent changes a database and is killed: `python _killed.py backend database saver once step`.

The step is "ask" (runs until a person is asked), "die" (the person agrees, and the program dies after the commit) or
"resume" (the person is asked again and agrees). Prints the tool's message if there is one.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from callboard import CallPolicy, ToolNode, create_react_agent
from callboard.middleware import RequireApproval
from callboard.testing import ScriptedModel, calls, tool_call
from callboard_actors.sql import WritableSqlDatabase

STATEMENT = "INSERT INTO item (name) VALUES (:name)"


async def main(database: str, saver: str, once: str, step: str) -> None:
    async def dies(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        found = await call_next(request)
        if step == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    call = tool_call("execute", statement=STATEMENT, parameters={"name": "bun"})
    db = WritableSqlDatabase(database, once="callboard_executed" if once == "once" else None)
    policies = {"execute": CallPolicy(idempotent=True)} if once == "once" else {}
    agent = create_react_agent(
        ScriptedModel([calls(call), "done"]),
        ToolNode([db], middleware=[RequireApproval(["execute"]), dies], policies=policies),
        checkpointer=saver,
    )
    config: RunnableConfig = {"configurable": {"thread_id": "1"}}
    given: Any = {"messages": [HumanMessage("a bun")]} if step == "ask" else Command(resume={"type": "accept"})
    async with agent:
        found = await agent.ainvoke(given, config)
    for message in found["messages"]:
        if isinstance(message, ToolMessage):
            print(message.content)


if __name__ == "__main__":
    backend, *rest = sys.argv[1:]
    anyio.run(main, *rest, backend=backend)
