"""How to measure side by side, and how to tell about it."""

import gc
import statistics
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any

import anyio

Clock = Callable[[], float]
Contestant = Callable[[], float]
"""One repetition; returns what it measured."""

CPU: Clock = process_time
"""Processor time of all threads: other programs on the machine hardly disturb it."""
WALL: Clock = perf_counter


class Samples:
    """What each contestant measured, turn by turn."""

    def __init__(self, by_name: Mapping[str, Sequence[float]]) -> None:
        self._by_name = by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __getitem__(self, name: str) -> float:
        """The median of a contestant."""
        return statistics.median(self._by_name[name])

    def ratio(self, name: str, whole: str) -> float:
        """One contestant to another: the median of the ratios within a turn, as the machine's speed wanders."""
        pairs = zip(self._by_name[name], self._by_name[whole], strict=True)
        return statistics.median(one / other for one, other in pairs)


def interleaved(contestants: Mapping[str, Contestant], repetitions: int) -> Samples:
    """Let all take a turn before any takes the next; the first turn is to warm up, unless there is no other.

    What happens to the machine or to the heap in the meantime so happens to everybody. Garbage collection stays on,
    as it is in programs; each turn begins with a clean heap.
    """
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repetitions + 1):
        for name, run in contestants.items():
            gc.collect()
            samples[name].append(run())
    return Samples({name: values[1:] or values for name, values in samples.items()})


def timed(
    backend: str, work: Callable[[], Awaitable[object]], *, times: int = 1, clock: Clock = CPU, warm: bool = True
) -> Contestant:
    """Seconds that a piece of work takes in an event loop that already runs, on average of so many times."""

    async def main() -> float:
        if warm:
            await work()
            gc.collect()
        began = clock()
        for _ in range(times):
            await work()
        return (clock() - began) / times

    return lambda: anyio.run(main, backend=backend)


@dataclass(frozen=True, slots=True)
class Budget:
    """What was promised, and what was measured."""

    promise: str
    limit: float
    measured: float

    def __str__(self) -> str:
        verdict = "met" if self.measured <= self.limit else "MISSED"
        return f"- {self.promise}: {self.measured:.3g} of {self.limit:.3g}, {verdict}"


@dataclass(slots=True)
class Table:
    """One table of results, in Markdown."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)
    notes: Sequence[str] = ()

    def add(self, *cells: object) -> None:
        self.rows.append([_cell(cell) for cell in cells])

    def __str__(self) -> str:
        widths = [max(len(row[i]) for row in (self.columns, *self.rows)) for i in range(len(self.columns))]
        lines = [
            f"## {self.title}",
            "",
            _line(self.columns, widths),
            "|" + "|".join("-" * (width + 1) + (":" if i else "-") for i, width in enumerate(widths)) + "|",
            *(_line(row, widths) for row in self.rows),
        ]
        for block in (self.notes, [str(budget) for budget in self.budgets]):
            lines += ["", *block] if block else []
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
