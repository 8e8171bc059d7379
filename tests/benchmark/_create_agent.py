"""Cost of an agent of `create_agent`, beside LangChain's own: runs, middleware, and a thread on disk."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from langchain.agents import create_agent as langchains
from langchain.agents.middleware import AgentMiddleware

import callboard

from ._agent import Parrot, run_of
from ._contestants import LOOK_UP
from ._journal import MB, Contest, open_async
from ._measure import Budget, Samples, Table, interleaved, timed

OURS, THEIRS = "callboard.create_agent", "langchain.agents.create_agent"
FACTORIES: dict[str, Callable[..., Any]] = {OURS: callboard.create_agent, THEIRS: langchains}
LIMITS = {(1, 100, 0): 0.15, (10, 10, 0): 0.25, (10, 10, 3): 0.35}
"""Promised share of the time of LangChain's agent, by turns, calls in each turn, and number of middlewares."""

Shape = tuple[int, int, int]


class Passing(AgentMiddleware[Any, Any, Any]):
    """Middleware with two hooks that do nothing."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    @property
    def name(self) -> str:
        return f"passing_{self._number}"

    async def abefore_model(self, state: Any, runtime: Any) -> None:
        return None

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


def runs(*, shapes: tuple[Shape, ...], repetitions: int) -> Table:
    """Measure runs without a checkpointer. A shape is a number of turns, of calls in each turn, and of middlewares."""
    titles = [f"{turns} x {calls}, {count} middlewares" for turns, calls, count in shapes]
    table = Table("Runs of `create_agent`", ["CPU ms a run", *titles])
    costs = [_costs(shape, repetitions) for shape in shapes]
    for name in costs[0]:
        table.add(name, *(cost[name] * 1e3 for cost in costs))
    table.add(f"{OURS} : LangChain's", *(cost.ratio(OURS, THEIRS) for cost in costs))
    for shape, title, cost in zip(shapes, titles, costs, strict=True):
        table.budgets.append(Budget(f"{title}, time of LangChain's", LIMITS.get(shape, 1.0), cost.ratio(OURS, THEIRS)))
    return table


def _costs(shape: Shape, repetitions: int) -> Samples:
    turns, calls, count = shape
    model = Parrot(turns=turns, calls=calls)

    def run(name: str) -> Any:
        return run_of(FACTORIES[name](model, [LOOK_UP], middleware=[*map(Passing, range(count))]), turns)

    contestants = {name: timed("asyncio", run(name), times=3) for name in FACTORIES}
    return interleaved({**contestants, f"{OURS}, trio": timed("trio", run(OURS), times=3)}, repetitions)


def kept(*, turns: int, calls: int, repetitions: int) -> Table:
    """Measure one run with many calls, whose results are stored one by one."""
    table = Table(f"A run of {turns} x {calls} calls of `create_agent`, kept on disk", ["", "CPU ms", "MB"])
    size: dict[str, int] = {}

    def run(name: str) -> float:
        contest = Contest(lambda model, saver: FACTORIES[name](model, [LOOK_UP], checkpointer=saver), open_async)
        with tempfile.TemporaryDirectory() as directory:
            cpu, _ = contest.kept(Path(directory) / "db", 1, turns, calls)
            size[name] = sum(file.stat().st_size for file in Path(directory).iterdir())
        return cpu

    found = interleaved({name: partial(run, name) for name in FACTORIES}, repetitions)
    for name in FACTORIES:
        table.add(name, found[name] * 1e3, size[name] / MB)
    ratios: Sequence[float] = (found.ratio(OURS, THEIRS), size[OURS] / size[THEIRS])
    table.add(f"{OURS} : LangChain's", *ratios)
    table.budgets = [
        Budget("time of LangChain's", 0.2, ratios[0]),
        Budget("bytes of LangChain's", 0.3, ratios[1]),
    ]
    return table
