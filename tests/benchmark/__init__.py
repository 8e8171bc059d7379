"""Benchmarks of callboard against LangGraph and against the minimal cost of such a call.

`uv run python -m tests.benchmark [--quick] [name ...]`, see `docs/reference/benchmarks.md`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from . import (
    _actors,
    _agent,
    _cost,
    _fleet,
    _imports,
    _journal,
    _many,
    _mcp,
    _memory,
    _shared,
    _telemetry,
    _throughput,
    _workers,
)
from ._measure import Table


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One measurement and its size."""

    measure: Callable[..., Table]
    full: Mapping[str, Any]
    quick: Mapping[str, Any]
    tiny: Mapping[str, Any]
    """Smallest size, which shows that the benchmark works but gives no useful numbers."""

    def run(self, size: Literal["full", "quick", "tiny"]) -> Table:
        return self.measure(**getattr(self, size))


BENCHMARKS = {
    "cost": Benchmark(
        _cost.calls,
        full={"sizes": (1, 10, 100, 1_000, 10_000), "repetitions": 15},
        quick={"sizes": (1, 10, 100, 1_000), "repetitions": 5},
        tiny={"sizes": (2,), "repetitions": 0},
    ),
    "building": Benchmark(
        _cost.building,
        full={"count": 200, "repetitions": 9},
        quick={"count": 50, "repetitions": 3},
        tiny={"count": 1, "repetitions": 0},
    ),
    "memory": Benchmark(_memory.waiting_calls, full={"count": 10_000}, quick={"count": 1_000}, tiny={"count": 3}),
    "http": Benchmark(
        _throughput.http,
        full={"count": 1_000, "limit": 100, "repetitions": 5},
        quick={"count": 1_000, "limit": 100, "repetitions": 1},
        tiny={"count": 3, "limit": 2, "repetitions": 0},
    ),
    "agent": Benchmark(
        _agent.turns,
        full={"shapes": ((1, 100), (10, 1), (10, 10), (10, 100)), "repetitions": 9},
        quick={"shapes": ((10, 1), (10, 10), (10, 100)), "repetitions": 3},
        tiny={"shapes": ((2, 2),), "repetitions": 0},
    ),
    "actors": Benchmark(
        _actors.actors,
        full={"asks": 5_000, "sizes": (1, 100), "idle": 1_000, "repetitions": 15},
        quick={"asks": 2_000, "sizes": (1, 100), "idle": 1_000, "repetitions": 5},
        tiny={"asks": 2, "sizes": (2,), "idle": 2, "repetitions": 0},
    ),
    "workers": Benchmark(
        _workers.workers,
        full={"calls": 2_000, "kills": 100, "starts": 15},
        quick={"calls": 500, "kills": 20, "starts": 5},
        tiny={"calls": 2, "kills": 2, "starts": 1},
    ),
    "places": Benchmark(
        _shared.places,
        full={"calls": 2_000, "width": 8},
        quick={"calls": 500, "width": 8},
        tiny={"calls": 3, "width": 2},
    ),
    "mcp": Benchmark(
        _mcp.mcp,
        full={"calls": 2_000},
        quick={"calls": 300},
        tiny={"calls": 2},
    ),
    "many": Benchmark(
        _many.many,
        full={"sizes": (100, 1_000, 10_000, 100_000), "threads": (100, 1_000, 10_000, 100_000)},
        quick={"sizes": (100, 1_000, 10_000), "threads": (100, 1_000, 10_000)},
        tiny={"sizes": (2, 3), "threads": (2,)},
    ),
    "fleet": Benchmark(
        _fleet.fleet,
        full={"turns": 320},
        quick={"turns": 50},
        tiny={"turns": 1},
    ),
    "kept": Benchmark(
        _journal.durable_runs,
        full={"shapes": ((10, 1), (10, 10), (1, 300), (50, 1)), "repetitions": 5},
        quick={"shapes": ((10, 1), (10, 10), (1, 300), (50, 1)), "repetitions": 2},
        tiny={"shapes": ((2, 2),), "repetitions": 0},
    ),
    "turns": Benchmark(
        _journal.later_turns,
        full={"lengths": (10, 100, 300, 600), "repetitions": 9},
        quick={"lengths": (10, 100, 300, 600), "repetitions": 3},
        tiny={"lengths": (1, 2), "repetitions": 0},
    ),
    "telemetry": Benchmark(
        _telemetry.telemetry,
        full={"sizes": (1, 100, 1_000), "repetitions": 15},
        quick={"sizes": (100,), "repetitions": 7},
        tiny={"sizes": (2,), "repetitions": 0},
    ),
    "reading": Benchmark(_telemetry.reading, full={"count": 4_000}, quick={"count": 4_000}, tiny={"count": 2}),
    "imports": Benchmark(_imports.imports, full={"repetitions": 9}, quick={"repetitions": 3}, tiny={"repetitions": 1}),
}
