"""Many calls of 50 ms under a limit, over real HTTP."""

import heapq
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import count as numbers
from itertools import islice
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketStream
from langchain_core.tools import StructuredTool

import callboard
from callboard import Limit
from callboard._cli._demo import answer_for

from ._contestants import asking, direct
from ._measure import WALL, Budget, Contestant, Table, measure_in_turns

SECONDS = 0.05


def http(*, count: int, limit: int, repetitions: int) -> Table:
    """Measure requests to the demo's service, which runs in its own process and answers after about 50 ms."""
    items = list(islice(_items(), count))
    ideal = _makespan([answer_for(item).latency for item in items], limit)
    contestants: dict[str, Contestant] = {}
    for backend in ("asyncio", "trio"):
        contestants[f"a client of 20 lines, {backend}"] = _requests(backend, items, limit, _alone)
        contestants[f"callboard ToolNode, {backend}"] = _requests(backend, items, limit, _by_node)
    samples = measure_in_turns(contestants, repetitions)
    walls = {name: samples[name] for name in samples}
    table = _table(f"{count} HTTP requests of 50 ms, {limit} at once", walls, ideal)
    for name, wall in walls.items():
        if name.startswith("callboard"):
            table.budgets.append(Budget(f"{name}, 1.3 x the ideal", 1.3, wall / ideal))
    return table


class KeepAlive:
    """Minimal HTTP client, which separates the cost of a call from the cost of a client."""

    def __init__(self, *, connections: int) -> None:
        self._limiter = anyio.CapacityLimiter(connections)
        self._idle: list[SocketStream] = []

    async def get(self, url: str) -> tuple[int, bytes]:
        address = urlsplit(url)
        async with self._limiter:
            if self._idle:
                stream = self._idle.pop()
            else:
                stream = await anyio.connect_tcp(address.hostname or "", address.port or 80)
            await stream.send(f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
            head, _, body = (await stream.receive()).partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            while len(body) < length:
                body += await stream.receive()
            self._idle.append(stream)
        return int(head[9:12]), body

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for stream in self._idle:
            await stream.aclose()


def _items() -> Iterator[int]:
    """Return items that succeed after 49 to 51 ms."""
    for item in numbers():
        answer = answer_for(item)
        if abs(answer.latency - SECONDS) <= 0.001 and answer.status == 200:
            yield item


def _makespan(latencies: list[float], limit: int) -> float:
    """Return the end of the last call, if each call starts as soon as a place is free."""
    ends = [0.0] * limit
    for latency in latencies:
        heapq.heapreplace(ends, ends[0] + latency)
    return max(ends)


def _requests(backend: str, items: list[int], limit: int, run: Callable[..., Any]) -> Contestant:
    async def main(url: str) -> float:
        async with KeepAlive(connections=limit) as client:

            async def fetch(item: int) -> str:
                status, body = await client.get(f"{url}/item/{item}")
                assert status == 200
                return body.decode()

            # Open the connections first: they are not measured.
            await run(fetch, items[:limit], limit)
            began = WALL()
            await run(fetch, items, limit)
            return WALL() - began

    def measure() -> float:
        with _service() as url:
            return anyio.run(main, url, backend=backend)

    return measure


_SERVE = """
import anyio
from callboard._cli._demo import Service

async def serve():
    service = Service()
    async with service.listening():
        print(service.url, flush=True)
        await anyio.sleep_forever()

anyio.run(serve)
"""


@contextmanager
def _service() -> Generator[str]:
    """Run the demo's service in a process of its own, and yield its URL."""
    with subprocess.Popen([sys.executable, "-c", _SERVE], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


async def _alone(fetch: Callable[[int], Any], items: list[int], limit: int) -> None:
    async with anyio.create_task_group() as group:  # the client enforces the limit itself
        for item in items:
            group.start_soon(fetch, item)


async def _by_node(fetch: Callable[[int], Any], items: list[int], limit: int) -> None:
    tool = StructuredTool.from_function(coroutine=fetch, name="fetch", description="Fetch an item.")
    node = callboard.ToolNode([tool], limit=Limit(concurrency=limit))
    await direct(node, asking("fetch", "item", items))()


def _table(title: str, walls: Mapping[str, float], ideal: float) -> Table:
    table = Table(title, ["", "seconds", "x the ideal"])
    table.add("ideal", ideal, 1.0)
    for name, wall in walls.items():
        table.add(name, wall, wall / ideal)
    return table
