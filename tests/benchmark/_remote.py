"""Cost of a call to a worker over TCP, compared with a local worker process and with a bare TCP echo."""

import math
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio

from callboard.extend import Body
from callboard_actors.process import Processes
from callboard_actors.remote import RemoteEngine

from ._measure import WALL, Table

BACKENDS = ("asyncio", "trio")
_SECRET = "only for this machine, and for a moment"
_ECHO = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print("echo at 127.0.0.1:%d" % server.getsockname()[1], flush=True)
    own, _ = server.accept()
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := own.recv(4096):
        own.sendall(data)
"""
_SERVED = "callboard.testing._engine_bodies"
_MESSAGE = b"x" * 64


def remote(*, calls: int) -> Table:
    """Measure in alternating turns, because the machine's speed changes. The remote machine is this one."""
    table = Table("Workers on other machines", ["", *BACKENDS])
    rows = [anyio.run(_rounds, calls, backend=backend) for backend in BACKENDS]
    names = ("echo over bare TCP, p50, us", "warm call of a worker process, p50, us", "warm call by TCP, p50, us")
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        table.add(name, *(value * 1e6 for value in values))
    table.add("by TCP : worker process", *(row[2] / row[1] for row in rows))
    table.add(
        "200 calls at once on two workers by TCP, us each", *(anyio.run(_many, backend=one) * 1e6 for one in BACKENDS)
    )
    return table


@contextmanager
def _started(command: list[str]) -> Iterator[str]:
    environment = {**os.environ, "CALLBOARD_WORKER_SECRET": _SECRET}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def _worker() -> list[str]:
    command = [sys.executable, "-m", "callboard._cli", "worker", f"{_SERVED}:add"]
    return [*command, "--listen", "127.0.0.1:0"]


async def _rounds(count: int) -> tuple[float, float, float]:
    """Return the medians of an echo, of a call to a process, and of a call over TCP."""
    from callboard.testing import _engine_bodies as bodies

    body = Body(fn=bodies.add, args=(1,), title="add")
    with _started([sys.executable, "-c", _ECHO]) as echoing, _started(_worker()) as serving:
        host, _, port = echoing.rpartition(":")
        with socket.create_connection((host, int(port))) as ours:
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ours.setblocking(False)

            async def echo() -> None:
                ours.send(_MESSAGE)
                await anyio.wait_readable(ours)
                ours.recv(4096)

            async with Processes(workers=1) as pool, RemoteEngine([serving], secret=_SECRET) as engine:
                await engine.run_body(body)
                rounds = [
                    (
                        await _median(echo, count),
                        await _median(lambda: pool.run(math.sqrt, 4.0), count),
                        await _median(lambda: engine.run_body(body), count),
                    )
                    for _ in range(5)
                ]
    echoes, calls, far = zip(*rounds, strict=True)
    return statistics.median(echoes), statistics.median(calls), statistics.median(far)


async def _many(count: int = 200) -> float:
    from callboard.testing import _engine_bodies as bodies

    body = Body(fn=bodies.add, args=(1,), title="add")
    with _started(_worker()) as serving:
        async with RemoteEngine([serving], secret=_SECRET) as engine:
            taken = []
            for _ in range(4):
                began = WALL()
                async with anyio.create_task_group() as group:
                    for _ in range(count):
                        group.start_soon(engine.run_body, body)
                taken.append((WALL() - began) / count)
    return statistics.median(taken[1:])


async def _median(work: Callable[[], Awaitable[object]], count: int) -> float:
    await work()
    taken = []
    for _ in range(count):
        began = WALL()
        await work()
        taken.append(WALL() - began)
    return statistics.median(taken)
