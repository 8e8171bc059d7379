"""Measurements of `tests.rivals`, each a table; run inside the environment that has all frameworks."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

import anyio
from langgraph.checkpoint.sqlite import SqliteSaver

import callboard
from tests.benchmark._actors import _asks, _whole
from tests.benchmark._agent import Parrot
from tests.benchmark._contestants import LOOK_UP
from tests.benchmark._cost import building, calls
from tests.benchmark._journal import durable_runs
from tests.benchmark._measure import BACKENDS, Contestant, Samples, Table, measure_in_turns, timing_of
from tests.benchmark._workers import _round_trips

from ._frameworks import FRAMEWORKS, HAND, OURS, Framework, of_callboard
from ._killed import killed

OURS_ON_TRIO = f"{OURS}, trio"
_AT_LEAST = 100
"""Minimum number of calls in a measurement. Small batches are repeated."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of all measurements."""

    batches: Sequence[int]
    loops: Sequence[tuple[int, int]]
    stored: Sequence[tuple[int, int]]
    repetitions: int
    calls: int
    """Repetitions of batches of a node, which take less time than runs of an agent."""
    killed: int
    asks: int


FULL = Size(
    (1, 10, 100, 1_000), ((10, 1), (10, 10), (10, 100)), ((10, 1), (10, 10), (1, 300), (50, 1)), 7, 11, 7, 1_000
)
QUICK = Size((1, 10, 100), ((10, 1), (10, 10)), ((10, 1), (10, 10)), 3, 5, 2, 200)
TINY = Size((2,), ((2, 1),), ((2, 1),), 0, 0, 0, 2)


@dataclass
class Found:
    """Tables, in the order of the page."""

    tables: list[Table] = field(default_factory=list)


def contestants(turns: int, calls: int) -> Mapping[str, Contestant]:
    """Return each framework's run on asyncio, and callboard's on trio, where no other framework runs."""
    times = -(-_AT_LEAST // (turns * calls))
    runs = {
        framework.name: timing_of("asyncio", framework.build(turns, calls), times=times)
        for framework in FRAMEWORKS
        if is_there(framework)
    }
    runs[OURS_ON_TRIO] = timing_of("trio", of_callboard(turns, calls), times=times)
    return runs


def is_there(framework: Framework) -> bool:
    """Return whether a framework's distribution is installed."""
    try:
        version(framework.distribution)
    except ModuleNotFoundError:
        return False
    return True


def measure_all(size: Size) -> Found:
    """Return all measurements, in the order of the page."""
    measurements = Found()
    _add_nodes(measurements, size)
    _add_batches(measurements, size)
    _add_loops(measurements, size)
    stored = durable_runs(shapes=size.stored, repetitions=size.repetitions)
    measurements.tables += [stored, commits(*size.stored[-1]), killed(repetitions=size.killed), asks(size.asks)]
    for table in measurements.tables:
        table.budgets.clear()  # those of `tests.benchmark`
    return measurements


def _add_nodes(measurements: Found, size: Size) -> None:
    """Add batches of a node, and the time to build a node and an agent."""
    measurements.tables += [
        calls(sizes=size.batches, repetitions=size.calls),
        building(count=size.asks // 5 + 1, repetitions=size.calls),
    ]


def commits(turns: int, each: int) -> Table:
    """Count the commits of a durable run. The number does not depend on the machine."""
    table = Table("Commits", ["", "count"])
    table.add(f"commits of a durable run with `SqliteSaver`, {turns} x {each}", anyio.run(_commits, turns, each))
    return table


async def _commits(turns: int, each: int) -> int:
    statements: list[str] = []
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.set_trace_callback(statements.append)
    agent = callboard.create_react_agent(
        Parrot(turns=turns, calls=each), [LOOK_UP], checkpointer=SqliteSaver(connection)
    )
    await agent.ainvoke(
        {"messages": [("user", "go")]}, {"configurable": {"thread_id": "1"}, "recursion_limit": 4 * turns + 10}
    )
    connection.close()
    return statements.count("COMMIT")


def _add_batches(measurements: Found, size: Size) -> None:
    """Add runs of one reply with a number of calls, and of a last reply."""
    samples = {count: measure_in_turns(contestants(1, count), size.repetitions) for count in size.batches}
    columns = ["us of processor time for a call", *(f"{count:,} call{'s' if count > 1 else ''}" for count in samples)]
    table = Table("A run with one reply of many calls", columns)
    for name in next(iter(samples.values())):
        table.add(name, *(batch_samples[name] * 1e6 / count for count, batch_samples in samples.items()))
    _add_ratios(table, list(samples.values()))
    measurements.tables.append(table)


def _add_ratios(table: Table, columns: Sequence[Samples]) -> None:
    table.add(*(["*ratios*"] + [""] * len(columns)))
    table.add(f"{OURS} : {HAND}", *(column.ratio(OURS, HAND) for column in columns))
    table.add(f"{OURS_ON_TRIO} : {OURS}", *(column.ratio(OURS_ON_TRIO, OURS) for column in columns))
    for name in columns[0]:
        if name not in (OURS, OURS_ON_TRIO, HAND):
            table.add(f"{name} : {OURS}", *(column.ratio(name, OURS) for column in columns))


def _add_loops(measurements: Found, size: Size) -> None:
    samples = [measure_in_turns(contestants(turns, calls), size.repetitions) for turns, calls in size.loops]
    columns = ["ms of processor time for a run", *(f"{turns} x {calls:,}" for turns, calls in size.loops)]
    table = Table("An agent loop of several turns", columns)
    for name in samples[0]:
        table.add(name, *(loop_samples[name] * 1e3 for loop_samples in samples))
    _add_ratios(table, samples)
    measurements.tables.append(table)


def asks(count: int) -> Table:
    """Measure one question and its answer: in the process, and in a worker process."""
    table = Table("One ask, by the place of the answer", ["us", *BACKENDS])
    in_process = measure_in_turns({backend: _whole(_asks, backend, count) for backend in BACKENDS}, 3)
    table.add("an actor in the process (processor time)", *(in_process[backend] * 1e6 for backend in BACKENDS))
    rounds = [anyio.run(_round_trips, count, backend=backend) for backend in BACKENDS]
    table.add("a worker process", *(call * 1e6 for _, call, _ in rounds))
    return table
