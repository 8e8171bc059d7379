"""Workers over TCP: a call compared with a local worker and a bare TCP echo, and the effect of a rolling restart."""

import math
import socket
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import anyio

from callboard import CallPolicy, ToolNode
from callboard.extend import Body
from callboard.testing import _engine_bodies as bodies
from callboard.testing import calls
from callboard_actors.process import Processes
from callboard_actors.remote import RemoteEngine
from tests.remote._commands import SECRET, Worker, worker

from ._measure import BACKENDS, WALL, Table, median_of

_WORK = f"{__name__}:work"
_ECHO = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print("127.0.0.1:%d" % server.getsockname()[1], flush=True)
    own, _ = server.accept()
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := own.recv(4096):
        own.sendall(data)
"""
_MESSAGE = b"x" * 64
_ADD = Body(fn=bodies.add, args=(1,), title="add")


@contextmanager
def _echoing() -> Generator[str]:
    """Run a server that echoes over bare TCP, and yield its address."""
    with subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _replaced(one: Worker) -> Worker:
    """End a worker, and start another one at the same address."""
    one.close()
    return Worker(_WORK, "--listen", one.address)


def remote(*, calls: int) -> Table:
    """Measure in alternating turns, because the machine's speed changes. The remote machine is this one."""
    table = Table("Workers on other machines", ["", *BACKENDS])
    rows = [anyio.run(_rounds, calls, backend=backend) for backend in BACKENDS]
    names = ("echo over bare TCP, p50, us", "warm call of a worker process, p50, us", "warm call by TCP, p50, us")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        table.add(name, *(value * 1e6 for value in values))
    table.add("by TCP : worker process", *(row[2] / row[1] for row in rows))
    many = [anyio.run(_many, backend=one) * 1e6 for one in BACKENDS]
    table.add("200 calls at once on two workers by TCP, us each", *many)
    return table


async def _rounds(count: int) -> tuple[float, float, float]:
    """Return the medians of an echo, of a call to a process, and of a call over TCP."""
    with _echoing() as echoing, worker(f"{bodies.__name__}:add") as serving:
        host, _, port = echoing.rpartition(":")
        with socket.create_connection((host, int(port))) as ours:
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ours.setblocking(False)

            async def echo() -> None:
                ours.send(_MESSAGE)
                await anyio.wait_readable(ours)
                ours.recv(4096)

            async with Processes(workers=1) as pool, RemoteEngine([serving.address], secret=SECRET) as engine:
                await engine.run_body(_ADD)
                works = (echo, lambda: pool.run(math.sqrt, 4.0), lambda: engine.run_body(_ADD))
                rounds = [[await median_of(work, count) for work in works] for _ in range(5)]
    echoes, calls, far = map(statistics.median, zip(*rounds, strict=True))
    return echoes, calls, far


async def _many(count: int = 200) -> float:
    with worker(f"{bodies.__name__}:add") as serving:
        async with RemoteEngine([serving.address], secret=SECRET) as engine:

            async def all_at_once() -> None:
                async with anyio.create_task_group() as group:
                    for _ in range(count):
                        group.start_soon(engine.run_body, _ADD)

            return await median_of(all_at_once, 3) / count


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
        for name, percent in (("p50", 50), ("p99", 99)):
            quantiles = [statistics.quantiles(one[at], n=100, method="inclusive")[percent - 1] for one in found]
            table.add(f"{title}: {name}, ms", *(one * 1e3 for one in quantiles))
    table.add("calls that were lost", *(one[2] for one in found))
    return table


async def _restarted(workers: int, callers: int, seconds: float, body: float) -> tuple[list[float], list[float], int]:
    """Return the durations of calls before and during the restart, and the number of lost calls."""
    fleet = [await anyio.to_thread.run_sync(Worker, _WORK) for _ in range(workers)]
    try:
        engine = RemoteEngine([one.address for one in fleet], secret=SECRET, patience=60.0)
        async with ToolNode([work], policies={"work": CallPolicy(runs_in=engine, on_unknown="fail")}) as node:

            async def call(number: int) -> bool:
                [message] = await node.ainvoke([calls(("work", {"number": number, "seconds": body}))])
                return bool(message.status == "success")

            async def replace() -> None:
                for place, one in enumerate(fleet):
                    fleet[place] = await anyio.to_thread.run_sync(_replaced, one)

            await call(0)
            quiet, lost = await _load(call, callers, lambda: anyio.sleep(seconds))
            rolled, more = await _load(call, callers, replace)
    finally:
        for one in fleet:
            one.close()
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
