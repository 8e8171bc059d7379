"""Interleaved measurements and tables of their results."""

import gc
import math
import os
import statistics
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any

import anyio

Clock = Callable[[], float]
Contestant = Callable[[], float]
"""One repetition, which returns its measurement."""

BACKENDS = ("asyncio", "trio")

CPU: Clock = process_time
"""Processor time of all threads, which other programs on the machine hardly affect."""
WALL: Clock = perf_counter


class Samples:
    """Measurements of each contestant, turn by turn."""

    def __init__(self, by_name: Mapping[str, Sequence[float]]) -> None:
        self._by_name = by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __getitem__(self, name: str) -> float:
        """Return the median of a contestant."""
        return statistics.median(self._by_name[name])

    def ratio(self, name: str, reference: str) -> float:
        """Return the median of the ratios within each turn, which is robust when the machine's speed changes."""
        pairs = zip(self._by_name[name], self._by_name[reference], strict=True)
        return statistics.median(seconds / reference_seconds for seconds, reference_seconds in pairs)


def measure_in_turns(contestants: Mapping[str, Contestant], repetitions: int) -> Samples:
    """Measure the contestants in alternating turns. The first turn is a warm-up, unless it is the only one.

    Changes of the machine or of the heap then affect all contestants. Garbage collection stays on, as in real programs,
    and each turn begins with a clean heap.
    """
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repetitions + 1):
        for name, run in contestants.items():
            gc.collect()
            samples[name].append(run())
    return Samples({name: values[1:] or values for name, values in samples.items()})


@contextmanager
def on_one_processor() -> Iterator[None]:
    """Keep all threads of this process on one processor in the block, where the system can do that.

    A thread that wakes one on another processor costs 40 to 130 us there, as the machine happens to be: up to a third
    of an agent's turn. On one processor, the cost is that of the code.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    processors = os.sched_getaffinity(0)
    _keep_on({min(processors)})
    try:
        yield
    finally:
        _keep_on(processors)


def _keep_on(processors: Iterable[int]) -> None:
    # A thread that starts later inherits the processors of the one that starts it.
    for thread in threading.enumerate():
        if thread.native_id is not None:
            os.sched_setaffinity(thread.native_id, processors)


def timing_of(
    backend: str, action: Callable[[], Awaitable[object]], *, times: int = 1, clock: Clock = CPU, warm: bool = True
) -> Contestant:
    """Return the average seconds of a piece of work in a running event loop."""

    async def main() -> float:
        if warm:
            await action()
            gc.collect()
        began = clock()
        for _ in range(times):
            await action()
        return (clock() - began) / times

    return lambda: anyio.run(main, backend=backend)


def batches(backend: str, action: Callable[[], Awaitable[object]], size: int) -> Contestant:
    """Return the average processor time of a batch of this many calls; the largest runs without a warm-up."""
    return timing_of(backend, action, times=repeats(size), warm=size < 10_000)


def repeats(size: int) -> int:
    """Return how often a batch of this size is run in one measurement, which has at least 500 calls."""
    return math.ceil(500 / size)


async def median_of(action: Callable[[], Awaitable[object]], count: int) -> float:
    """Return the median of the wall-clock seconds of this many runs, after one run as warm-up."""
    await action()
    durations = []
    for _ in range(count):
        began = WALL()
        await action()
        durations.append(WALL() - began)
    return statistics.median(durations)


def kilobytes(standing: Callable[[int], AbstractAsyncContextManager[object]], count: int, backend: str) -> float:
    """Return the memory of each of this many objects, which an async context manager holds."""

    async def weigh(count: int) -> int:
        holder = standing(count)
        gc.collect()
        tracemalloc.start()
        try:
            async with holder:
                gc.collect()
                return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    async def main() -> float:
        await weigh(1)  # one-time allocations do not belong to an object
        return await weigh(count)

    return anyio.run(main, backend=backend) / count / 1024


@dataclass(frozen=True, slots=True)
class Budget:
    """Promised value and measured value."""

    promise: str
    limit: float
    measured: float

    def exceeds(self, margin: float) -> bool:
        """Return whether the measured value is more than `margin` times the promised one."""
        return self.measured > margin * self.limit

    def __str__(self) -> str:
        verdict = "met" if self.measured <= self.limit else "MISSED"
        return f"- {self.promise}: {self.measured:.3g} of {self.limit:.3g}, {verdict}"


@dataclass(slots=True)
class Table:
    """Table of results, printed as Markdown."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        self.rows.append([_cell(cell) for cell in cells])

    def promise(self, promise: str, limit: float, measured: Iterable[float]) -> None:
        """Add a budget for each backend."""
        self.budgets += [
            Budget(f"{promise}, {event_loop}", limit, value)
            for event_loop, value in zip(BACKENDS, measured, strict=True)
        ]

    def __str__(self) -> str:
        widths = [max(len(row[i]) for row in (self.columns, *self.rows)) for i in range(len(self.columns))]
        lines = [
            f"## {self.title}",
            "",
            _line(self.columns, widths),
            "|" + "|".join("-" * (width + 1) + (":" if i else "-") for i, width in enumerate(widths)) + "|",
            *(_line(row, widths) for row in self.rows),
        ]
        if self.budgets:
            lines += ["", *map(str, self.budgets)]
        return "\n".join(lines)


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    padded = (cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True)))
    return "| " + " | ".join(padded) + " |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
