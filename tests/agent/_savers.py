"""Checkpointers, inputs and agents for tests, and the rules of a provider for a conversation."""

import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from callboard import ToolNode, create_agent, create_react_agent
from callboard._loops._bridge import run_on_asyncio
from callboard.conversations._saver import Saver
from callboard.conversations._storage import CHANNEL, commits_in
from callboard.testing import ScriptedModel

AGENTS = pytest.mark.parametrize("make", [create_react_agent, create_agent])
AT: Any = {"configurable": {"thread_id": "1"}}


def say(text: str) -> Any:
    """Return the input of a run: one message of the user."""
    return {"messages": [("user", text)]}


QUESTION, MORE = say("go"), say("more")
SAVERS = ("memory", "sqlite", "aiosqlite")
ON_DISK = SAVERS[1:]


@asynccontextmanager
async def saver_of(
    kind: str, path: Path | str, *, sync: type[Any] = SqliteSaver, aio: type[Any] = AsyncSqliteSaver
) -> AsyncIterator[Any]:
    """Return a checkpointer; on trio, the async one lives on the background loop of asyncio.

    Args:
        kind: one of `SAVERS`.
        path: of the database.
        sync: the class for "sqlite".
        aio: the class for "aiosqlite".
    """
    if kind == "memory":
        yield InMemorySaver()
    elif kind == "sqlite":
        connection = sqlite3.connect(path, check_same_thread=False)
        connection.execute("PRAGMA synchronous=OFF")  # only a power cut loses data, a kill does not
        try:
            yield sync(connection)
        finally:
            connection.close()
    else:
        saver = await run_on_asyncio(partial(_async_saver, path, aio))
        try:
            yield saver
        finally:
            await run_on_asyncio(saver.conn.close)


async def _async_saver(path: Path | str, aio: type[Any]) -> Any:
    connection = await aiosqlite.connect(path)
    await connection.execute("PRAGMA synchronous=OFF")
    return aio(connection)


class Tells(BaseCheckpointSaver[Any]):
    """Sync saver that calls its `hear` with each event, "found" or such as "before write", and with its value."""

    def hear(self, event: str, value: Any) -> None:
        raise NotImplementedError

    def get_tuple(self, config: Any) -> Any:
        checkpoint_tuple = super().get_tuple(config)
        self.hear("found", checkpoint_tuple)
        return checkpoint_tuple

    def put(self, config: Any, checkpoint: Any, *args: Any) -> Any:
        self.hear("before checkpoint", checkpoint)
        stored = super().put(config, checkpoint, *args)
        self.hear("after checkpoint", checkpoint)
        return stored

    def put_writes(self, config: Any, writes: Any, *args: Any) -> None:
        self.hear("before write", writes)
        super().put_writes(config, writes, *args)
        self.hear("after write", writes)


class TellsAsync(AsyncSqliteSaver):
    """Async saver that does the same."""

    def hear(self, event: str, value: Any) -> None:
        raise NotImplementedError

    async def aget_tuple(self, config: Any) -> Any:
        checkpoint_tuple = await super().aget_tuple(config)
        self.hear("found", checkpoint_tuple)
        return checkpoint_tuple

    async def aput(self, config: Any, checkpoint: Any, *args: Any) -> Any:
        self.hear("before checkpoint", checkpoint)
        stored = await super().aput(config, checkpoint, *args)
        self.hear("after checkpoint", checkpoint)
        return stored

    async def aput_writes(self, config: Any, writes: Any, *args: Any) -> None:
        self.hear("before write", writes)
        await super().aput_writes(config, writes, *args)
        self.hear("after write", writes)


def savers_that_tell(hear: Callable[[str, Any], object]) -> dict[str, type[Any]]:
    """Return classes for `saver_of` that call a function with each read, write and checkpoint."""

    class Sync(Tells, SqliteSaver):
        def hear(self, event: str, value: Any) -> None:
            hear(event, value)

    class Async(TellsAsync):
        def hear(self, event: str, value: Any) -> None:
            hear(event, value)

    return {"sync": Sync, "aio": Async}


FAR = {"token": "theirs", "host": "elsewhere", "boot": "another", "pid": 1}
"""The hold of a run on another machine."""


def forge(saver: Any, config: Any, entry: dict[str, Any]) -> None:
    """Write an entry of another process to the journal of a thread."""
    checkpoint_tuple = saver.get_tuple(config)
    saver.put_writes(
        checkpoint_tuple.config, [(CHANNEL, [entry])], f"callboard-{commits_in(checkpoint_tuple) + 1:08}", "~callboard"
    )


async def aforge(saver: Any, config: Any, entry: Any) -> None:
    """Write an entry to the journal of a place, by the sync or async methods that the checkpointer has."""
    stored = Saver(saver, config["configurable"]["thread_id"], "")
    checkpoint_id = config["configurable"]["checkpoint_id"]
    await stored.store(stored.writes(checkpoint_id, [(CHANNEL, [entry])], "callboard-00000001", ""))


class Recording(InMemorySaver):
    """Records every entry, with the time of its write; fails once at an entry of the kind `fails_at`."""

    def __init__(self, *, fails_at: str = "") -> None:
        super().__init__()
        self.entries: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.batches = self.checkpoints = 0
        self.fails_at = fails_at

    def put(self, *args: Any, **options: Any) -> Any:
        self.checkpoints += 1
        return super().put(*args, **options)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        entries = [entry for channel, value in writes if channel == CHANNEL for entry in value]
        if self.fails_at in [entry["kind"] for entry in entries]:
            self.fails_at = ""
            raise OSError("the disk is full")
        super().put_writes(config, writes, task_id, task_path)
        self.batches += 1
        self.entries += entries
        self.times += [time.time()] * len(entries)

    @property
    def commits(self) -> int:
        """Number of writes, of checkpoints and of entries."""
        return self.batches + self.checkpoints

    @property
    def kinds(self) -> list[str]:
        return [entry["kind"] for entry in self.entries]


def errors_at_once(use: Callable[[Any], object], targets: Sequence[Any]) -> list[BaseException]:
    """Use each thing in a thread, all at the same time; return the errors."""
    barrier = threading.Barrier(len(targets))

    def work(argument: Any) -> None:
        barrier.wait(60)
        use(argument)

    with ThreadPoolExecutor(len(targets)) as threads:
        futures = [threads.submit(work, target) for target in targets]
    return [error for future in futures if (error := future.exception()) is not None]


def use_database(database: Any) -> None:
    """Read from a checkpointer, or write to a store."""
    database.get_tuple(AT) if hasattr(database, "get_tuple") else database.put(("a",), "b", {"c": 1})


def copy_of(saver: InMemorySaver) -> InMemorySaver:
    """Return a saver with the data that is stored now, as a killed process leaves it."""
    copy = InMemorySaver()
    for name in ("storage", "writes", "blobs"):
        getattr(copy, name).update({key: deepcopy(value) for key, value in getattr(saver, name).items()})
    return copy


def scripted(replies: Sequence[Any], tools: Any = (), *, loop: bool = False, **options: Any) -> Any:
    """Return an agent whose model gives these replies."""
    return create_react_agent(ScriptedModel(replies, loop=loop), tools, **options)


def agent_with(make: Any, model: ScriptedModel, tools: Sequence[Any], policies: Any, **options: Any) -> Any:
    """Return an agent of either function whose tools have these policies."""
    if make is create_agent:
        return make(model, tools, policies=policies, **options)
    return make(model, ToolNode(tools, policies=policies), **options)


async def run(
    agent: Any, agent_input: Any = QUESTION, config: Any = None, *, door: str = "ainvoke", **options: Any
) -> Any:
    """Run an agent, with `ainvoke` or with `invoke` in a thread; return the state at the end."""
    with anyio.fail_after(20):
        if door == "invoke":
            return await anyio.to_thread.run_sync(partial(agent.invoke, agent_input, config, **options))
        return await agent.ainvoke(agent_input, config, **options)


def _messages(conversation: Any) -> Sequence[BaseMessage]:
    return conversation["messages"] if isinstance(conversation, dict) else conversation


def shape(conversation: Any) -> list[str]:
    """Describe the messages of a list or of a state in words, such as `human:go` or `tool:a`."""
    return [f"{message.type}:{message.content}" for message in _messages(conversation)]


def contents(conversation: Any) -> list[Any]:
    """Return the contents of the messages in a list or in a state."""
    return [message.content for message in _messages(conversation)]


def complaint(messages: Sequence[BaseMessage]) -> str | None:
    """Return why a provider refuses a conversation: each call needs one answer, in order, right after its message."""
    owed: list[str | None] = []
    for position, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if not owed or owed.pop(0) != message.tool_call_id:
                return f"message {position} answers {message.tool_call_id}, which is not the next one asked for"
            continue
        if owed:
            return f"no answer to {owed} before message {position}"
        if isinstance(message, AIMessage):
            owed = [call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls)]
    ids = [message.id for message in messages]
    if len(set(ids)) < len(ids):
        return f"messages are doubled: {ids}"
    return f"no answer to {owed} at the end" if owed else None
