"""An agent whose process ends inside a tool. The ids of the spans that it began are in its directory.

python -m tests.telemetry._killed DIRECTORY
"""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
from langgraph.checkpoint.sqlite import SqliteSaver
from opentelemetry.sdk.trace import SpanProcessor

from callboard import CallPolicy, ToolNode, create_react_agent
from callboard.testing import ScriptedReply, calls
from tests.helpers import make

from ._traces import PaidModel, full_reply, record_traces

THREAD: Any = {"configurable": {"thread_id": "t"}}


class Diary(SpanProcessor):
    """Span processor that writes the ids of spans to a file when they begin."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        with self._path.open("a") as file:
            file.write(f"{span.name}={span.context.span_id}\n")


@contextmanager
def agent_in(directory: Path, pay: Any, *script: ScriptedReply) -> Iterator[Any]:
    """Return an agent on the database of that directory. Lost calls are put to a person."""
    node = ToolNode([make(pay)], policies={"pay": CallPolicy(on_unknown="ask")})
    with closing(sqlite3.connect(directory / "db", check_same_thread=False)) as connection:
        yield create_react_agent(PaidModel(script), node, name="clerk", checkpointer=SqliteSaver(connection))


async def pay() -> str:
    os._exit(9)


async def main(directory: Path) -> None:
    with record_traces() as traces, agent_in(directory, pay, calls("pay"), full_reply("done")) as agent:
        traces.provider.add_span_processor(Diary(directory / "spans"))
        await agent.ainvoke({"messages": [("user", "go")]}, THREAD)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
