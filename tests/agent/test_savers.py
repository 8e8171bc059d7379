"""Slow checkpointers: data is stored however long that takes, or an error says that it was not."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest
from aiosqlite import connect
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from callboard import StorageError, ToolNode, create_react_agent
from callboard._loops import _deadline
from callboard._loops._current import current_loop
from callboard.extend import run_on_asyncio
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import make

from ._savers import AT, QUESTION, SAVERS, contents, saver_of, say, scripted, shape

pytestmark = pytest.mark.real_clock

GRACE = 0.3
TABLES = "CREATE TABLE IF NOT EXISTS checkpoints"
ALL = ["human:go", "ai:", "tool:work", "ai:done"]


class Slow(InMemorySaver):
    """Stores nothing while its gate is closed. On trio it runs on another loop, and therefore polls."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.waiting = threading.Event()

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.waiting.set()
        while not self.gate.is_set():
            await asyncio.sleep(0.001)
        await super().aput_writes(config, writes, task_id, task_path)


class Tool:
    """A tool whose result arrives while the gate is closed."""

    def __init__(self, saver: Slow) -> None:
        self.saver = saver
        self.runs = 0
        saver.gate.set()

    async def work(self) -> str:
        """Work."""
        self.runs += 1
        if self.runs == 1:
            self.saver.gate.clear()
            self.saver.waiting.clear()
        return "work"

    async def is_being_stored(self) -> None:
        while not self.runs:
            await anyio.sleep(0.001)
        await until(self.saver.waiting)

    def agent(self) -> Any:
        model = ScriptedModel([calls(("work", {})), "done"])
        return create_react_agent(model, [make(self.work)], checkpointer=self.saver)


def agent_with(saver: Any, recorder: Recorder) -> Any:
    model = ScriptedModel([calls(("work", {})), "done"])
    return create_react_agent(model, [recorder.tool("work")], checkpointer=saver)


async def until(is_so: threading.Event) -> None:
    while not is_so.is_set():
        await anyio.sleep(0.001)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_deadline, "DEFAULT_GRACE", GRACE)


async def test_what_takes_longer_than_any_grace_is_stored_all_the_same() -> None:
    """A busy database must cause neither lost results nor an error about another run."""
    saver, recorder = Slow(), Recorder()
    async with anyio.create_task_group() as group:
        group.start_soon(agent_with(saver, recorder).ainvoke, QUESTION, AT)
        await until(saver.waiting)
        await anyio.sleep(3 * GRACE)
        saver.gate.set()
    state = await agent_with(saver, recorder).aget_state(AT)
    assert shape(state.values) == ALL


async def test_what_is_being_stored_when_the_run_is_cancelled_is_stored() -> None:
    """The write ends within the grace, like any clean-up, so the next run finds the result."""
    tool = Tool(Slow())
    agent = tool.agent()
    async with anyio.create_task_group() as group:
        group.start_soon(agent.ainvoke, QUESTION, AT)
        await tool.is_being_stored()
        group.cancel_scope.cancel()
        tool.saver.gate.set()
    result = await agent.ainvoke(None, AT)
    assert shape(result) == ALL
    assert tool.runs == 1


async def test_a_checkpointer_that_never_answers_does_not_hold_a_cancelled_run() -> None:
    saver = Slow()
    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as group:
            group.start_soon(agent_with(saver, Recorder()).ainvoke, QUESTION, AT)
            await until(saver.waiting)
            group.cancel_scope.cancel()

    [error] = caught.value.exceptions
    assert isinstance(error, StorageError)
    assert "type Slow" in str(error)
    assert "its grace was over" in str(error)


@pytest.mark.backends("asyncio")
async def test_a_native_cancellation_goes_on_when_what_it_met_is_stored() -> None:
    """`task.cancel()`, as in `asyncio.wait_for`, neither cuts off a write nor is lost."""
    tool = Tool(Slow())
    agent = tool.agent()
    task = asyncio.get_running_loop().create_task(agent.ainvoke(QUESTION, AT))
    await tool.is_being_stored()
    task.cancel()
    await asyncio.sleep(GRACE / 3)
    assert not task.done()
    tool.saver.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = await agent.ainvoke(None, AT)
    assert shape(result) == ALL
    assert tool.runs == 1


# A saver that loses its connection after a write: the outcome is unknown, and the thread must stay correct.


class Unlucky(InMemorySaver):
    """Fails once after a write has been stored; may disconnect for good some writes later.

    Args:
        fails_at: number of the write after which the connection is lost.
        good_for: number of later writes that still succeed.
    """

    def __init__(self, fails_at: int, good_for: int = 1000) -> None:
        super().__init__()
        self._fails_at = fails_at
        self._last = fails_at + good_for
        self._writes = 0

    def mend(self) -> None:
        self._fails_at, self._last = -1, self._writes + 1000

    def put(self, *args: Any) -> Any:
        if self._writes >= self._last:
            raise ConnectionError("cut off")
        return super().put(*args)

    def put_writes(self, *args: Any) -> None:
        self._writes += 1
        if self._writes > self._last:
            raise ConnectionError("cut off")
        super().put_writes(*args)
        if self._writes == self._fails_at:
            raise ConnectionError("stored, but who knows")


async def fail_and_resume(saver: Unlucky) -> tuple[list[str], Recorder]:
    """One call ends as the connection is lost, and one a little later; then another run continues."""
    recorder = Recorder()
    node = ToolNode([recorder.tool("work"), recorder.tool("late", seconds=0.1)], on_error="finish")
    model = ScriptedModel([calls("work", "late"), "done"])
    with pytest.raises(ConnectionError):
        await create_react_agent(model, node, checkpointer=saver).ainvoke(QUESTION, AT)
    saver.mend()
    result = await create_react_agent(model, node, checkpointer=saver).ainvoke(None, AT)
    return contents(result), recorder


@pytest.mark.parametrize(("fails_at", "good_for"), [*((number, 1000) for number in range(2, 6)), (4, 2)])
async def test_a_write_that_was_stored_and_reported_lost_is_not_done_twice(fails_at: int, good_for: int) -> None:
    """The test covers each write of a turn.

    Savers keep the first of two writes with one id, so a result that finishes later must have a new id.
    """
    result, recorder = await fail_and_resume(Unlucky(fails_at, good_for))
    assert result == ["go", "", "work", "late", "done"]
    assert (recorder.count("started", "work"), recorder.count("started", "late")) == (1, 1)


async def test_a_run_that_could_not_begin_does_not_keep_its_thread_busy() -> None:
    """If the outcome of the first write is unknown, the thread must still be free for the next run.

    The write contains the input, too.
    """
    saver = Unlucky(1)
    agent = scripted(["done"], [], checkpointer=saver)
    with pytest.raises(ConnectionError):
        await agent.ainvoke(QUESTION, AT)
    result = await agent.ainvoke(None, AT)
    assert contents(result) == ["go", "done"]


# Checkpointers by users: overridden methods are called, and do not block the event loop.


@pytest.mark.parametrize("kind", SAVERS)
async def test_a_tool_may_await_a_node_of_several_calls_whatever_keeps_the_thread(kind: str, tmp_path: Path) -> None:
    """The inner node writes its ledger to the outer agent's saver; on trio, that saver lives on another loop."""
    inner = ToolNode([Recorder().tool("work")])

    async def delegate() -> str:
        """Have two things done."""
        done = await inner.ainvoke(calls("work", "work").tool_calls)
        return str(len(done["messages"]))

    async with saver_of(kind, tmp_path / "db") as saver:
        agent = scripted([calls("delegate"), "done"], [delegate], checkpointer=saver)
        result = await agent.ainvoke(QUESTION, AT)
    assert [message.content for message in result["messages"]] == ["go", "", "2", "done"]


class SyncOverride(InMemorySaver):
    """Overrides the sync methods with blocking code."""

    def put(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return super().put(*args, **kwargs)

    def put_writes(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return super().put_writes(*args, **kwargs)


@pytest.mark.exhaustive
async def test_a_slow_override_does_not_hold_the_event_loop() -> None:
    """Methods that are only sync run in a thread, although the class inherits async ones."""
    agent = scripted(["done"], [], checkpointer=SyncOverride())
    gaps: list[float] = []

    async def watch() -> None:
        while True:
            before = current_loop().now()
            await anyio.sleep(0.01)
            gaps.append(current_loop().now() - before)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await agent.ainvoke(QUESTION, AT)
        tasks.cancel_scope.cancel()
    assert len(gaps) > 10


@pytest.mark.parametrize("kind", ["sqlite", "aiosqlite"])
async def test_a_saver_creates_its_tables_once_and_commits_twice_for_each_turn(tmp_path: Path, kind: str) -> None:
    """A commit waits for the disk. The start and the end of a run are two commits each."""
    statements: list[str] = []
    async with saver_of(kind, tmp_path / "agent.db") as saver:
        if kind == "sqlite":
            saver.conn.set_trace_callback(statements.append)
        else:
            await run_on_asyncio(partial(saver.conn.set_trace_callback, statements.append))
        model = ScriptedModel([*[calls("work")] * 10, "done"])
        agent = create_react_agent(model, [Recorder().tool("work")], checkpointer=saver)
        await agent.ainvoke(QUESTION, {**AT, "recursion_limit": 50})
    assert statements.count("COMMIT") == 24
    assert sum(TABLES in statement for statement in statements) == 1


@pytest.mark.backends("asyncio")
async def test_a_checkpointer_that_connects_again_during_a_run_stores_with_its_new_connection(tmp_path: Path) -> None:
    async def reconnect() -> str:
        """Connect again."""
        await saver.conn.close()
        saver.conn = await connect(tmp_path / "agent.db")
        return "connected"

    saver: Any = AsyncSqliteSaver(await connect(tmp_path / "agent.db"))
    try:
        agent = create_react_agent(ScriptedModel([calls("reconnect"), "done"]), [make(reconnect)], checkpointer=saver)
        await agent.ainvoke(QUESTION, AT)
        state = await agent.aget_state(AT)
        assert [message.content for message in state.values["messages"]][-2:] == ["connected", "done"]
        assert state.next == ()
    finally:
        await saver.conn.close()


async def test_a_commit_that_is_mocked_on_an_aiosqlite_connection_fails_the_run(tmp_path: Path) -> None:
    async with saver_of("aiosqlite", tmp_path / "agent.db") as saver:
        await run_on_asyncio(saver.setup)
        saver.conn.commit = AsyncMock(side_effect=sqlite3.OperationalError("disk I/O error"))
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            await scripted(["done"], [], checkpointer=saver).ainvoke(QUESTION, AT)


@pytest.mark.parametrize("kind", SAVERS)
@pytest.mark.parametrize("is_replaced", [True, False])
async def test_a_method_that_is_put_on_a_saver_or_taken_from_it_during_a_run_is_heeded(
    tmp_path: Path, kind: str, is_replaced: bool
) -> None:
    name = "aput_writes" if kind == "aiosqlite" else "put_writes"
    writes: list[Any] = []

    def replace() -> None:
        real = getattr(saver, name)

        def record_write(*args: Any) -> Any:
            writes.append(args)
            return real(*args)

        setattr(saver, name, record_write)

    async def change() -> str:
        """Change the saver."""
        if is_replaced:
            replace()
        else:
            delattr(saver, name)
        writes.clear()
        return "changed"

    async with saver_of(kind, tmp_path / "agent.db") as saver:
        if not is_replaced:
            replace()
        await scripted([calls("change"), "done"], [change], checkpointer=saver).ainvoke(QUESTION, AT)
    assert bool(writes) is is_replaced


async def test_a_serializer_of_an_async_sqlite_saver_reads_the_context_variables_of_the_run(tmp_path: Path) -> None:
    """A serializer may take the key of a tenant from there."""
    tenant: ContextVar[str] = ContextVar("tenant", default="")
    tenants: set[str] = set()

    class Own(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            tenants.add(tenant.get())
            return super().dumps_typed(obj)

    async with saver_of("aiosqlite", tmp_path / "agent.db") as saver:
        saver.serde = Own()
        agent = scripted([calls("work"), "done"], [Recorder().tool("work")], checkpointer=saver)
        tenant.set("one")
        await agent.ainvoke(QUESTION, AT)
    assert tenants == {"one"}


@pytest.mark.parametrize("kind", SAVERS)
async def test_what_a_tool_does_to_an_old_message_is_stored(kind: str, tmp_path: Path) -> None:
    """As in LangGraph, a tool gets the message objects of the conversation, and may change them."""

    def spoil(messages: list[BaseMessage]) -> list[BaseMessage]:
        messages[1].additional_kwargs["seen"] = [len(messages)]
        messages[2].content = "changed"
        return messages

    conversations: list[list[BaseMessage]] = []

    def prompt(state: Any) -> Any:
        conversations.append(state["messages"])
        return spoil(state["messages"]) if len(conversations) in (5, 6, 9) else state["messages"]

    async with saver_of(kind, tmp_path / "db") as saver:
        model = ScriptedModel([reply for _ in range(6) for reply in (calls(("work", {"query": "a"})), "done")])
        agent = create_react_agent(model, [Recorder().tool("work")], prompt=prompt, checkpointer=saver)
        for _ in range(6):
            result = await agent.ainvoke(say("go"), AT)
            snapshot = await agent.aget_state(AT)
            assert snapshot.values["messages"] == result["messages"]
    assert isinstance(snapshot.values["messages"][2], ToolMessage)
    assert snapshot.values["messages"][1].additional_kwargs == {"seen": [17]}
    assert snapshot.values["messages"][2].content == "changed"


def test_a_user_s_subclass_of_a_saver_is_the_object_that_reads() -> None:
    """The subclass may depend on being one object, so the reader must not be a copy."""
    read_by: list[int] = []

    class Own(InMemorySaver):
        def get_tuple(self, config: Any) -> Any:
            read_by.append(id(self))
            return super().get_tuple(config)

    saver = Own()
    scripted(["hi"], [], checkpointer=saver).invoke(QUESTION, AT)
    assert set(read_by) == {id(saver)}
