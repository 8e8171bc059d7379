"""Effect of a rolling restart of four workers on their callers."""

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from callboard import CallPolicy, ToolNode
from callboard.testing import calls
from callboard_actors.remote import RemoteEngine

from ._measure import WALL, Table

BACKENDS = ("asyncio", "trio")
_SECRET = "only for this machine, and for a moment"
_ROOT = Path(__file__).parents[__name__.count(".")]


async def work(number: int, seconds: float) -> int:
    """Wait, and return the number of the work item."""
    await anyio.sleep(seconds)
    return number


def rolling(*, workers: int, callers: int, seconds: float, body: float) -> Table:
    """Measure continuous callers, first without changes and then while each worker is replaced."""
    table = Table("Workers that are replaced", ["", *BACKENDS])
    found = [anyio.run(_restarted, workers, callers, seconds, body, backend=backend) for backend in BACKENDS]
    for title, at in (("while nothing happens", 0), ("while all are replaced", 1)):
        table.add(f"{title}: calls", *(len(one[at]) for one in found))
        for name, quantile in (("p50", 50), ("p99", 99)):
            table.add(f"{title}: {name}, ms", *(_quantile(one[at], quantile) * 1e3 for one in found))
    table.add("calls that were lost", *(one[2] for one in found))
    return table


def _quantile(taken: list[float], percent: int) -> float:
    return statistics.quantiles(taken, n=100, method="inclusive")[percent - 1]


class _Worker:
    def __init__(self, listen: str = "127.0.0.1:0") -> None:
        command = [sys.executable, "-m", "callboard._cli", "worker", f"{__name__}:work", "--listen", listen]
        self.process = subprocess.Popen(
            [*command, "--app-dir", str(_ROOT)],
            env={**os.environ, "CALLBOARD_WORKER_SECRET": _SECRET},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        with self.process:
            self.process.wait(60)

    def replaced(self) -> "_Worker":
        self.end()
        return _Worker(self.address)


@asynccontextmanager
async def _fleet(count: int) -> AsyncGenerator[list[_Worker]]:
    found = [await anyio.to_thread.run_sync(_Worker) for _ in range(count)]
    try:
        yield found
    finally:
        for one in found:
            one.end()


async def _restarted(workers: int, callers: int, seconds: float, body: float) -> tuple[list[float], list[float], int]:
    """Return the durations of calls before and during the restart, and the number of lost calls."""
    async with _fleet(workers) as fleet:
        engine = RemoteEngine([one.address for one in fleet], secret=_SECRET, patience=60.0)
        async with ToolNode([work], policies={"work": CallPolicy(runs_in=engine, on_unknown="fail")}) as node:

            async def call(number: int) -> bool:
                [message] = await node.ainvoke([calls(("work", {"number": number, "seconds": body}))])
                return bool(message.status == "success")

            async def replace() -> None:
                for place, one in enumerate(fleet):
                    fleet[place] = await anyio.to_thread.run_sync(one.replaced)

            await call(0)
            quiet, lost = await _load(call, callers, lambda: anyio.sleep(seconds))
            rolled, more = await _load(call, callers, replace)
    return quiet, rolled, lost + more


async def _load(
    call: Callable[[int], Awaitable[bool]], callers: int, meanwhile: Callable[[], Awaitable[object]]
) -> tuple[list[float], int]:
    taken: list[float] = []
    lost = 0
    is_over = False

    async def caller() -> None:
        nonlocal lost
        while not is_over or len(taken) < 2:
            began = WALL()
            is_there = await call(len(taken))
            lost += not is_there
            taken.append(WALL() - began)

    async with anyio.create_task_group() as group:
        for _ in range(callers):
            group.start_soon(caller)
        await meanwhile()
        is_over = True
    return taken, lost
