"""An agent with an actor, in a process that is killed in the middle of a call.

python -m tests.actors._killed_notebook DIRECTORY BACKEND STORE
"""

import json
import os
import signal
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal, cast

import anyio
from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from callboard import Actor, Agent, CallPolicy, ToolNode, child, create_react_agent, handler, tool_call
from callboard.testing import ScriptedModel, calls

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Files:
    """Snapshot store in a directory, with a file for each actor and key."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def load(self, actor: str, key: Hashable) -> object:
        path = self._path(actor, key)
        return json.loads(path.read_text()) if path.exists() else None

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        path = self._path(actor, key)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(snapshot))
        new.replace(path)

    def _path(self, actor: str, key: Hashable) -> Path:
        return self._directory / f"{actor}-{key}.json"


class Ledger(Actor):
    """Actor whose entries are kept in snapshots."""

    async def start(self) -> None:
        self.entries: list[str] = []

    async def snapshot(self) -> list[str]:
        return self.entries

    async def restore(self, snapshot: list[str]) -> None:
        self.entries = snapshot

    @handler(idempotent=True)
    async def append(self, text: str) -> str:
        """Append an entry."""
        self.entries.append(text)
        return ",".join(self.entries)

    @handler
    async def pay(self, text: str) -> str:
        """Pay; once is enough."""
        self.entries.append(text)
        if "DOOMED" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return ",".join(self.entries)


SCRIPT = [
    calls(tool_call("append", text="a")),
    calls(tool_call("append", text="b")),
    calls(tool_call("pay", text="c"), tool_call("append", text="d")),
    calls(tool_call("append", text="e")),
]


def reply(messages: list[Any]) -> AIMessage:
    turn = sum(isinstance(message, AIMessage) for message in messages)
    return SCRIPT[turn] if turn < len(SCRIPT) else AIMessage("done")


Store = Literal["files", "journal"]


def agent(directory: Path, saver: Any, on_unknown: Any, store: Store) -> Agent:
    snapshots: Any = Files(directory) if store == "files" else "journal"
    ledger = child(Ledger, key=lambda _: "t", snapshots=snapshots, save="each_call")
    node = ToolNode([ledger], policies={"pay": CallPolicy(on_unknown=on_unknown)})
    return create_react_agent(ScriptedModel([reply], loop=True), node, checkpointer=saver)


async def main() -> None:
    directory = Path(sys.argv[1])
    with SqliteSaver.from_conn_string(str(directory / "db")) as saver:
        await agent(directory, saver, "fail", cast("Store", sys.argv[3])).ainvoke(
            {"messages": [("user", "go")]}, CONFIG
        )


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[2])
