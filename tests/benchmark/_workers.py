"""Cost of a worker process: a round trip, the first call, a replacement after a kill, and memory."""

import asyncio
import math
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import anyio
import sniffio
import trio

from callboard_actors.process import Processes

from ._measure import BACKENDS, WALL, Budget, Samples, Table, measure_in_turns, median_of

_ECHO = """
import socket, sys
own = socket.socket(fileno=int(sys.argv[1]))
while data := own.recv(4096):
    own.sendall(data)
"""
_MESSAGE = b"x" * 64
_TURNS = 5
_OTHERS = ("ProcessPoolExecutor awaited", "ProcessPoolExecutor.submit")


def workers(*, calls: int, kills: int, starts: int) -> Table:
    """Compare a warm call with an echo over a socket pair, and measure starts, kills and memory."""
    table = Table("Workers", ["", *BACKENDS])
    echoes, calls_, ratios = zip(*(anyio.run(_round_trips, calls, backend=one) for one in BACKENDS), strict=True)
    table.add("echo over a bare socket pair, p50, us", *(one * 1e6 for one in echoes))
    table.add("warm call of a worker, p50, us", *(one * 1e6 for one in calls_))
    table.add("call : echo", *ratios)
    many = [_many(calls, one) for one in BACKENDS]
    for name in ("Processes", *_OTHERS):
        table.add(f"{calls:,} calls on two workers, {name}, us each", *(one[name] * 1e6 for one in many))
    for backend, samples in zip(BACKENDS, many, strict=True):
        table.budgets += [
            Budget(f"{calls:,} calls, {name}, {backend}", 1, samples.ratio("Processes", name)) for name in _OTHERS
        ]
    begins = [[anyio.run(_first_call, backend=one) for _ in range(starts)] for one in BACKENDS]
    table.add("start of a pool and first call, p50, ms", *(statistics.median(one) * 1e3 for one in begins))
    pauses = [anyio.run(_replacements, kills, backend=one) for one in BACKENDS]
    table.add("full strength after a kill, p50, ms", *(statistics.median(one) * 1e3 for one in pauses))
    table.add("full strength after a kill, worst, ms", *(max(one) * 1e3 for one in pauses))
    weights = [anyio.run(_megabytes, backend=one) for one in BACKENDS]
    table.add("idle worker, unshared MB", *weights)
    table.promise("a warm call, 200 us", 200, [one * 1e6 for one in calls_])
    table.promise("a warm call, 3 echoes", 3, ratios)
    table.promise("the first call after start, 150 ms", 150, [statistics.median(one) * 1e3 for one in begins])
    table.promise("replaced after a kill, 50 ms", 50, [statistics.median(one) * 1e3 for one in pauses])
    table.promise("an idle worker, 15 MB", 15, weights)
    return table


async def _round_trips(count: int) -> tuple[float, float, float]:
    """Return the medians of an echo, of a call, and of their ratios, measured in alternating turns."""
    parent_end, child_end = socket.socketpair()
    with child_end:
        command = [sys.executable, "-c", _ECHO, str(child_end.fileno())]
        process = subprocess.Popen(command, pass_fds=[child_end.fileno()])
    parent_end.setblocking(False)

    async def echo() -> None:
        parent_end.send(_MESSAGE)
        await anyio.wait_readable(parent_end)
        parent_end.recv(4096)

    with process, parent_end:
        async with Processes(workers=1) as pool:
            works = (echo, lambda: pool.run(math.sqrt, 4.0))
            rounds = [[await median_of(action, count) for action in works] for _ in range(5)]
    echoes, calls = zip(*rounds, strict=True)
    ratios = [call / echo_seconds for echo_seconds, call in rounds]
    return statistics.median(echoes), statistics.median(calls), statistics.median(ratios)


def _many(count: int, backend: str) -> Samples:
    """Return the seconds per call with this many calls at once on two warm workers."""

    async def ours() -> float:
        async with Processes(workers=2) as pool:
            for _ in range(2):
                began = WALL()
                await _all([partial(pool.run, math.sqrt, 4.0)] * count)
        return (WALL() - began) / count

    async def await_all() -> float:
        began = WALL()
        await _all([in_executor] * count)
        return (WALL() - began) / count

    def in_executor() -> Awaitable[object]:
        if backend == "asyncio":
            return asyncio.get_running_loop().run_in_executor(executor, math.sqrt, 4.0)
        # trio has no other way to wait for its futures
        return trio.to_thread.run_sync(lambda: executor.submit(math.sqrt, 4.0).result())

    def submit_all() -> float:
        began = WALL()
        for future in [executor.submit(math.sqrt, 4.0) for _ in range(count)]:
            future.result()
        return (WALL() - began) / count

    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        contestants = (
            lambda: anyio.run(ours, backend=backend),
            lambda: anyio.run(await_all, backend=backend),
            submit_all,
        )
        return measure_in_turns(dict(zip(("Processes", *_OTHERS), contestants, strict=True)), _TURNS)


async def _all(calls: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """Run all at once with the event loop's own means: anyio's task group takes 15 us more for each."""
    if sniffio.current_async_library() == "asyncio":
        await asyncio.gather(*(call() for call in calls))
        return
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(call)


async def _first_call() -> float:
    began = WALL()
    async with Processes(workers=2, preload=["json"]) as pool:
        await pool.run(math.sqrt, 4.0)
        return WALL() - began


async def _replacements(count: int) -> list[float]:
    """Return the seconds from `kill -9` of a worker until the pool is complete again."""
    pauses = []
    async with Processes(workers=2) as pool:
        for _ in range(count):
            killed = pool.pids[0]
            await pool.run(math.sqrt, 4.0)
            began = WALL()
            os.kill(killed, signal.SIGKILL)
            while killed in pool.pids or len(pool.pids) < 2:
                await anyio.lowlevel.checkpoint()
            pauses.append(WALL() - began)
    return pauses


async def _megabytes() -> float:
    """Return the memory that the worker does not share with other processes, after a call."""
    async with Processes(workers=1) as pool:
        await pool.run(math.sqrt, 4.0)
        rollup = Path(f"/proc/{pool.pids[0]}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_")) / 1024
