"""Cost of one more call, key or thread where there are many already."""

import resource
import statistics
import tempfile
from pathlib import Path
from typing import Any

import anyio
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import callboard
from callboard import Actor, ToolNode, handler, keyed, tool_call
from tests.helpers import make

from ._agent import Parrot
from ._contestants import LOOK_UP
from ._measure import CPU, WALL, Table


class Note(Actor):
    """Keyed actor that keeps one number."""

    def __init__(self) -> None:
        self.number = 0

    @handler
    async def add(self, number: int) -> int:
        """Add to it."""
        self.number += number
        return self.number


def many(*, sizes: tuple[int, ...], threads: tuple[int, ...]) -> Table:
    """Measure one more item among this many existing ones: microseconds of processor time, and bytes."""
    table = Table("Growth", ["", *(f"{size:,}" for size in sizes)])
    for name, measure in (("calls in one batch", _batch), ("actors by key, each asked once", _keys)):
        samples = [anyio.run(measure, size) for size in sizes]
        table.add(f"{name}, us each", *(sample[0] * 1e6 for sample in samples))
        table.add(f"{name}, KB each", *(sample[1] / 1024 for sample in samples))
    turns = [anyio.run(_threads, size) for size in threads]
    padding = [None] * (len(sizes) - len(threads))
    table.add("threads in one file of SQLite, ms a turn of one more", *(sample[0] * 1e3 for sample in turns), *padding)
    table.add("threads in one file of SQLite, KB each", *(sample[1] / 1024 for sample in turns), *padding)
    return table


async def _batch(size: int) -> tuple[float, float]:
    async def nothing(n: int) -> int:
        """Wait for nothing."""
        await anyio.lowlevel.checkpoint()
        return n

    node = ToolNode([make(nothing)], max_calls=size)
    batch = [tool_call("nothing", f"c{n}", n=n) for n in range(size)]
    await node.ainvoke(batch[:10])
    before, began = _resident(), CPU()
    messages = await node.ainvoke(batch)
    seconds = CPU() - began
    assert len(messages["messages"] if isinstance(messages, dict) else messages) == size
    return seconds / size, max(0, _resident() - before) / size


async def _keys(size: int) -> tuple[float, float]:
    async with keyed(Note) as notes:
        await notes["first"].add(1)
        before, began = _resident(), CPU()
        for number in range(size):
            await notes[number].add(1)
        return (CPU() - began) / size, max(0, _resident() - before) / size


async def _threads(size: int) -> tuple[float, float]:
    """Measure a turn in a thread as old as the others. Most threads are copies of the first one, made row by row."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "threads.sqlite")
        async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
            agent: Any = callboard.create_react_agent(Parrot(turns=1, calls=2), [LOOK_UP], checkpointer=saver)
            question = {"messages": [HumanMessage("go", id="question")]}
            await agent.ainvoke(question, _config("0"))
            for table in ("checkpoints", "writes"):
                names = [row[1] for row in await (await saver.conn.execute(f"PRAGMA table_info({table})")).fetchall()]
                other_columns = ", ".join(names[1:])
                await saver.conn.execute(
                    f"INSERT INTO {table} ({', '.join(names)}) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 "
                    f"FROM n WHERE i < {size - 1}) SELECT CAST(i AS TEXT), {other_columns} FROM n, {table}"
                )
            await saver.conn.commit()
            await agent.ainvoke(question, _config(str(size // 2)))
            durations = []
            for number in range(20):
                began = WALL()
                await agent.ainvoke(question, _config(str(number * size // 20)))
                durations.append(WALL() - began)
        return statistics.median(durations), path.stat().st_size / size


def _config(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}, "recursion_limit": 50}


def _resident() -> int:
    """Return the peak resident memory of this process in bytes, on Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
