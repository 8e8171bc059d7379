"""Many calls of 50 ms under a limit, in threads."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import langgraph.prebuilt
from langchain_core.tools import StructuredTool

import callboard
from callboard import Limit

from ._contestants import RUNTIME, direct, queries
from ._measure import WALL, Budget, Contestant, Table, interleaved, timed

SECONDS = 0.05


def _nap(query: str) -> str:
    """Block a thread."""
    time.sleep(SECONDS)
    return query


NAP = StructuredTool.from_function(func=_nap, name="nap")


def threads(*, count: int, few: int, limit: int, repetitions: int) -> Table:
    """Measure sync tools in worker threads.

    Args:
        count: number of calls.
        few: number of calls of LangGraph's `ainvoke`, which is slow. Its time is scaled.
        limit: maximum number of concurrent calls.
        repetitions: number of repetitions of all measurements.
    """
    ideal = SECONDS * count / limit
    ours = direct(callboard.ToolNode([NAP], limit=Limit(concurrency=limit)), queries(count, "nap"))
    theirs = langgraph.prebuilt.ToolNode([NAP])
    scaled = f"LangGraph ToolNode, `ainvoke` ({few} calls, scaled)"
    contestants: dict[str, Contestant] = {
        "a ThreadPoolExecutor": lambda: _pool(count, limit),
        "callboard ToolNode, asyncio": timed("asyncio", ours, clock=WALL),
        "callboard ToolNode, trio": timed("trio", ours, clock=WALL),
        "LangGraph ToolNode, `invoke` (sync)": lambda: _sync(theirs, count, limit),
        scaled: timed("asyncio", direct(theirs, queries(few, "nap")), clock=WALL, warm=False),
    }
    samples = interleaved(contestants, repetitions)
    walls = {name: samples[name] * (count / few if name == scaled else 1) for name in samples}
    table = _table(f"{count} sync tools of 50 ms, {limit} at once", walls, ideal)
    for backend in ("asyncio", "trio"):
        measured = walls[f"callboard ToolNode, {backend}"] / ideal
        table.budgets.append(Budget(f"1.5 x the ideal, {backend}", 1.5, measured))
    return table


def _pool(count: int, limit: int) -> float:
    with ThreadPoolExecutor(limit) as pool:
        began = WALL()
        list(pool.map(_nap, map(str, range(count))))
        return WALL() - began


def _sync(node: Any, count: int, limit: int) -> float:
    message = queries(count, "nap")
    began = WALL()
    node.invoke({"messages": [message]}, {"max_concurrency": limit, "configurable": RUNTIME})
    return WALL() - began


def _table(title: str, walls: Mapping[str, float], ideal: float) -> Table:
    table = Table(title, ["", "seconds", "x the ideal"])
    table.add("ideal", ideal, 1.0)
    for name, wall in walls.items():
        table.add(name, wall, wall / ideal)
    return table
