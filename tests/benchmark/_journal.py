"""Cost of persisting a thread: time and bytes of whole conversations, and the cost of resuming a long one."""

import gc
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import aiosqlite
import anyio
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatResult
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import callboard

from ._agent import Parrot
from ._contestants import LOOK_UP, langgraph_agent
from ._measure import CPU, WALL, Budget, Samples, Table, measure_in_turns

V1, V2 = "LangGraph create_react_agent, v1", "LangGraph create_react_agent, v2"
OURS, OURS_SYNC, OURS_TRIO = "callboard, AsyncSqliteSaver", "callboard, SqliteSaver", "callboard, SqliteSaver, trio"
READING, WRITING = "reading and decoding the thread, once", "encoding it, once"
MB = 1_048_576

Build = Callable[[BaseChatModel, Any], Any]
"""Function from a model and a checkpointer to an agent."""

Open = Callable[[Path], Awaitable[tuple[Any, Callable[[], Awaitable[object]]]]]
"""Function from a path to a checkpointer and a function that closes it."""


def _ours(model: BaseChatModel, saver: Any) -> Any:
    return callboard.create_react_agent(model, [LOOK_UP], checkpointer=saver)


async def open_async(path: Path) -> tuple[Any, Callable[[], Awaitable[object]]]:
    saver = AsyncSqliteSaver(await aiosqlite.connect(path))
    return saver, saver.conn.close


async def _open_sync(path: Path) -> tuple[Any, Callable[[], Awaitable[object]]]:
    saver = SqliteSaver(sqlite3.connect(path, check_same_thread=False))

    async def close() -> None:
        saver.conn.close()

    return saver, close


class Contest:
    """An agent with a checkpointer on one event loop.

    Args:
        build: the agent.
        open: the checkpointer.
        backend: of anyio.
    """

    def __init__(self, build: Build, open: Open, backend: str = "asyncio") -> None:
        self._build = build
        self._open = open
        self._backend = backend

    def time_runs(self, path: Path, runs: int, turns: int, calls: int) -> tuple[float, float]:
        """Return the processor time and wall-clock time of this many user messages.

        Each message is answered after `turns` turns of `calls` calls.
        """
        return anyio.run(self._time_runs, path, runs, turns, calls, backend=self._backend)

    async def _time_runs(self, path: Path, runs: int, turns: int, calls: int) -> tuple[float, float]:
        saver, close = await self._open(path)
        agent = self._build(Restarting(turns=turns, calls=calls), saver)
        config = {"configurable": {"thread_id": "1"}, "recursion_limit": 4 * turns + 10}
        gc.collect()
        began = CPU(), WALL()
        for number in range(runs):
            await agent.ainvoke({"messages": [HumanMessage("go", id=f"question {number}")]}, config)
        ended = CPU(), WALL()
        await close()
        return ended[0] - began[0], ended[1] - began[1]

    def one_more(self, path: Path, before: int) -> float:
        """Return the processor time of a turn with one call, on the thread in a database.

        Args:
            path: of the database.
            before: number of turns that the same agent runs first, as warm-up.
        """
        return anyio.run(self._one_more, path, before, backend=self._backend)

    async def _one_more(self, path: Path, before: int) -> float:
        saver, close = await self._open(path)
        agent = self._build(Restarting(turns=1, calls=1), saver)
        config = {"configurable": {"thread_id": "1"}}
        for number in range(before):
            await agent.ainvoke({"messages": [HumanMessage("go", id=f"before {number}")]}, config)
        gc.collect()
        began = CPU()
        await agent.ainvoke({"messages": [HumanMessage("go", id="question")]}, config)
        seconds = CPU() - began
        await close()
        return seconds


class Restarting(Parrot):
    """Model that counts its turns from the last user message."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        last = max(index for index, message in enumerate(messages) if isinstance(message, HumanMessage))
        result = super()._generate(messages[last:], *args, **kwargs)
        reply = result.generations[0].message
        assert isinstance(reply, AIMessage)
        for call in reply.tool_calls:
            call["id"] = f"{call['id']}_{last}"
        return result


CONTESTS = {
    OURS: Contest(_ours, open_async),
    OURS_SYNC: Contest(_ours, _open_sync),
    OURS_TRIO: Contest(_ours, _open_sync, "trio"),
    V1: Contest(lambda model, saver: langgraph_agent(model, "v1", saver), open_async),
    V2: Contest(lambda model, saver: langgraph_agent(model, "v2", saver), open_async),
}


@dataclass
class Kept:
    """Time of the contestants for the same runs, and bytes on disk after closing."""

    cpu: Samples
    wall: Samples
    size: dict[str, int]


def _measure_runs(names: Sequence[str], repetitions: int, runs: int, turns: int, calls: int) -> Kept:
    wall: dict[str, list[float]] = {name: [] for name in names}
    size: dict[str, int] = {}

    def run(name: str) -> float:
        with tempfile.TemporaryDirectory() as directory:
            cpu, seconds = CONTESTS[name].time_runs(Path(directory) / "db", runs, turns, calls)
            size[name] = sum(file.stat().st_size for file in Path(directory).iterdir())
        wall[name].append(seconds)
        return cpu

    cpu = measure_in_turns({name: partial(run, name) for name in names}, repetitions)
    return Kept(cpu, Samples({name: values[1:] or values for name, values in wall.items()}), size)


def durable_runs(*, shapes: Sequence[tuple[int, int]], repetitions: int) -> Table:
    """Measure runs whose results are stored one by one. A shape is a number of turns and of calls in each turn."""
    table = Table("A durable run on SQLite", ["ms", *(f"{turns} x {calls}" for turns, calls in shapes)])
    samples = [_measure_runs([*CONTESTS], repetitions, 1, turns, calls) for turns, calls in shapes]
    for name in CONTESTS:
        table.add(name, *(sample.wall[name] * 1e3 for sample in samples))
    for name in CONTESTS:
        table.add(f"{name}, MB on disk", *(sample.size[name] / MB for sample in samples))
    for (turns, calls), sample in zip(shapes, samples, strict=True):
        # Processor time: other programs on the machine change the time until a commit has reached the disk.
        best = min(V1, V2, key=sample.cpu.__getitem__)
        ratio = min(sample.cpu.ratio(name, best) for name in (OURS, OURS_SYNC))
        table.budgets.append(Budget(f"{turns} x {calls} calls, the better saver : LangGraph's best", 0.5, ratio))
    return table


def later_turns(*, lengths: tuple[int, ...], repetitions: int) -> Table:
    """Measure one more turn with one call, on threads with many turns and with few."""
    table = Table("A turn of a long conversation", ["CPU ms", *(f"after {length} turns" for length in lengths)])
    names = (OURS, OURS_SYNC, V1)
    with tempfile.TemporaryDirectory() as directory:
        paths = [_thread_of(Path(directory), length, 200) for length in lengths]
        later = [_turns_after(path, names, repetitions, before=1) for path in paths]
        first = [_turns_after(path, names, repetitions, before=0) for path in paths]
    for name in (*names, READING, WRITING):
        table.add(name, *(cost[name] * 1e3 for cost in later))
    for name in names:
        table.add(f"{name}, the first of an agent", *(cost[name] * 1e3 for cost in first))
    return table


def _turns_after(path: Path, names: Sequence[str], repetitions: int, before: int) -> Samples:
    def turn(name: str) -> float:
        return CONTESTS[name].one_more(_copy(path), before)

    contestants = {name: partial(turn, name) for name in names}
    return measure_in_turns({**contestants, READING: partial(_read, path), WRITING: partial(_write, path)}, repetitions)


def _copy(path: Path) -> Path:
    copy = path.with_name(f"copy of {path.name}")
    copy.write_bytes(path.read_bytes())
    return copy


def _write(path: Path) -> float:
    connection = sqlite3.connect(path)
    saver = SqliteSaver(connection)
    snapshot = saver.get_tuple({"configurable": {"thread_id": "1"}})
    assert snapshot is not None
    began = CPU()
    saver.serde.dumps_typed(snapshot.checkpoint)
    seconds = CPU() - began
    connection.close()
    return seconds


def _thread_of(directory: Path, length: int, size: int) -> Path:
    """Return a database with a thread of this many turns, written by callboard, with messages of this many bytes."""
    path = directory / f"{length} turns"

    async def make() -> None:
        saver, close = await open_async(path)
        agent = _ours(Parrot(turns=0, calls=0), saver)
        config = {"configurable": {"thread_id": "1"}}
        for number in range(length):
            call = {"name": "look_up", "args": {"query": "tea"}, "id": f"call_{number}", "type": "tool_call"}
            messages: list[BaseMessage] = [
                HumanMessage("go"),
                AIMessage("", tool_calls=[call]),  # type: ignore[list-item]
                ToolMessage("x" * size, tool_call_id=f"call_{number}", name="look_up"),
                AIMessage("Done."),
            ]
            await agent.aupdate_state(config, {"messages": messages}, as_node="agent")
        await saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await close()

    anyio.run(make)
    return path


def _read(path: Path) -> float:
    connection = sqlite3.connect(path)
    saver = SqliteSaver(connection)
    saver.setup()
    began = perf_counter()
    snapshot = saver.get_tuple({"configurable": {"thread_id": "1"}})
    seconds = perf_counter() - began
    connection.close()
    assert snapshot is not None
    return seconds
