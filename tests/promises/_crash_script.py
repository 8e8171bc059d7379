"""A process that dies between two calls of a batch, and the next process, which continues.

python _crash_script.py DIRECTORY SAVER ACTION [ANSWERS]

SAVER is `sqlite` (a sync graph) or `aiosqlite` (an async one); ACTION is the behaviour of the call
`deadly` in this process: `exit`, `hang` or `live`. Without ANSWERS the run starts or continues; with ANSWERS (JSON, by
question) it is resumed. Every body adds a line to `log`; the last line of the output is the state as JSON.
"""

import asyncio
import json
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from callboard import ToolNode

where, kind, action, *rest = sys.argv[1:]
directory = Path(where)
CONFIG: Any = {"configurable": {"thread_id": "t"}}
LONG_ENOUGH_TO_STORE = 0.7


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def log(line: str) -> None:
    with (directory / "log").open("a") as file:
        file.write(f"{line}\n")


async def quick(name: str) -> str:
    log(f"quick {name}")
    return f"quick {name}"


def blocking(name: str) -> str:
    log(f"blocking {name}")
    return f"blocking {name}"


async def ask(name: str) -> str:
    log(f"ask {name}")
    answer = interrupt(f"{name}?")
    log(f"answered {name}")
    return f"{name} got {answer}"


async def deadly() -> str:
    log("deadly")
    if action == "live":
        return "alive"
    await asyncio.sleep(LONG_ENOUGH_TO_STORE)
    (directory / "about to die").touch()
    if action == "exit":
        os._exit(9)
    time.sleep(30)
    return "nobody killed me"


def call(tool: str, /, **args: Any) -> Any:
    return {"name": tool, "args": args, "id": "-".join([tool, *args.values()]), "type": "tool_call"}


def build(saver: Any) -> Any:
    tools = [StructuredTool.from_function(coroutine=fn, description="A tool.") for fn in (quick, ask, deadly)]
    tools.append(StructuredTool.from_function(func=blocking, description="A tool."))
    builder: Any = StateGraph(State)
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "tools")
    graph = builder.compile()
    if (directory / "nested").exists():
        outer: Any = StateGraph(State)
        outer.add_node("team", graph)
        outer.add_edge(START, "team")
        return outer.compile(checkpointer=saver)
    return builder.compile(checkpointer=saver)


def first_input() -> Any:
    asked = [call("quick", name="a"), call("deadly"), call("blocking", name="b"), call("quick", name="c")]
    if (directory / "asking").exists():
        asked += [call("ask", name="d"), call("ask", name="e")]
    return {"messages": [AIMessage("", tool_calls=asked, id="ai-1")]}


def next_input(state: Any) -> Any:
    if not state.next:
        return first_input()
    if not rest:
        return None
    answers = json.loads(rest[0])
    questions = [question for task in state.tasks for question in task.interrupts]
    return Command(resume={question.id: answers[question.value] for question in questions if question.value in answers})


async def run_async(path: str) -> Any:
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        graph = build(saver)
        return await graph.ainvoke(next_input(await graph.aget_state(CONFIG)), CONFIG)


def run_sync(path: str) -> Any:
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        graph = build(SqliteSaver(connection))
        return graph.invoke(next_input(graph.get_state(CONFIG)), CONFIG)
    finally:
        connection.close()


if __name__ == "__main__":
    database = str(directory / "checkpoints.db")
    result = run_sync(database) if kind == "sqlite" else asyncio.run(run_async(database))
    messages = [message.content for message in result["messages"] if isinstance(message, ToolMessage)]
    questions = [question.value for question in result.get("__interrupt__", ())]
    print(json.dumps({"messages": messages, "questions": questions}))
