"""Many calls of 50 ms under a limit: in threads, and over real HTTP."""

import heapq
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count as numbers
from itertools import islice
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
import langgraph.prebuilt
from anyio.abc import SocketStream
from httpx2 import AsyncClient, Limits
from langchain_core.tools import StructuredTool

import callboard
from callboard import Limit
from callboard._cli._demo import answer_for

from ._contestants import RUNTIME, asking, direct, queries
from ._measure import WALL, Budget, Contestant, Table, interleaved, timed

SECONDS = 0.05


def _nap(query: str) -> str:
    """Block a thread."""
    time.sleep(SECONDS)
    return query


NAP = StructuredTool.from_function(func=_nap, name="nap")


def threads(*, count: int, few: int, limit: int, repetitions: int) -> Table:
    """Measure sync tools in worker threads.

    Args:
        count: number of calls.
        few: number of calls of LangGraph's `ainvoke`, which is slow. Its time is scaled.
        limit: maximum number of concurrent calls.
        repetitions: number of repetitions of all measurements.
    """
    ideal = SECONDS * count / limit
    ours = direct(callboard.ToolNode([NAP], limit=Limit(concurrency=limit)), queries(count, "nap"))
    theirs = langgraph.prebuilt.ToolNode([NAP])
    scaled = f"LangGraph ToolNode, `ainvoke` ({few} calls, scaled)"
    contestants: dict[str, Contestant] = {
        "a ThreadPoolExecutor": lambda: _pool(count, limit),
        "callboard ToolNode, asyncio": timed("asyncio", ours, clock=WALL),
        "callboard ToolNode, trio": timed("trio", ours, clock=WALL),
        "LangGraph ToolNode, `invoke` (sync)": lambda: _sync(theirs, count, limit),
        scaled: timed("asyncio", direct(theirs, queries(few, "nap")), clock=WALL, warm=False),
    }
    samples = interleaved(contestants, repetitions)
    walls = {name: samples[name] * (count / few if name == scaled else 1) for name in samples}
    table = _table(f"{count} sync tools of 50 ms, {limit} at once", walls, ideal)
    for backend in ("asyncio", "trio"):
        measured = walls[f"callboard ToolNode, {backend}"] / ideal
        table.budgets.append(Budget(f"1.5 x the ideal, {backend}", 1.5, measured))
    return table


def _pool(count: int, limit: int) -> float:
    with ThreadPoolExecutor(limit) as pool:
        began = WALL()
        list(pool.map(_nap, map(str, range(count))))
        return WALL() - began


def _sync(node: Any, count: int, limit: int) -> float:
    message = queries(count, "nap")
    began = WALL()
    node.invoke({"messages": [message]}, {"max_concurrency": limit, "configurable": RUNTIME})
    return WALL() - began


def http(*, count: int, limit: int, repetitions: int) -> Table:
    """Measure requests to the demo's service, which runs in its own process and answers after about 50 ms."""
    items = list(islice(_items(), count))
    ideal = _makespan([answer_for(item).latency for item in items], limit)
    contestants: dict[str, Contestant] = {}
    for client, name in ((KeepAlive, "a client of 20 lines"), (Httpx2, "the demo's client (httpx2)")):
        for backend in ("asyncio", "trio"):
            contestants[f"{name}, {backend}"] = _requests(backend, client, items, limit, _alone)
            contestants[f"callboard ToolNode, {name}, {backend}"] = _requests(backend, client, items, limit, _by_node)
    samples = interleaved(contestants, repetitions)
    walls = {name: samples[name] for name in samples}
    table = _table(f"{count} HTTP requests of 50 ms, {limit} at once", walls, ideal)
    for name, wall in walls.items():
        if name.startswith("callboard"):
            table.budgets.append(Budget(f"{name}, 1.3 x the ideal", 1.3, wall / ideal))
    return table


class KeepAlive:
    """Minimal HTTP client, which separates the cost of a call from the cost of a client."""

    def __init__(self, *, connections: int) -> None:
        self._places = anyio.CapacityLimiter(connections)
        self._idle: list[SocketStream] = []

    async def get(self, url: str) -> tuple[int, bytes]:
        address = urlsplit(url)
        async with self._places:
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


class Httpx2:
    """The demo's client behind a limiter, because requests that queue in its own pool cost it much time."""

    def __init__(self, *, connections: int) -> None:
        self._places = anyio.CapacityLimiter(connections)
        limits = Limits(max_connections=connections, max_keepalive_connections=connections)
        self._client = AsyncClient(limits=limits, timeout=None, trust_env=False)

    async def get(self, url: str) -> tuple[int, bytes]:
        async with self._places:
            response = await self._client.get(url)
        return response.status_code, response.content

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.__aexit__(*exc_info)


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


def _requests(backend: str, make: Any, items: list[int], limit: int, run: Callable[..., Any]) -> Contestant:
    async def main(url: str) -> float:
        async with make(connections=limit) as client:

            async def fetch(item: int) -> str:
                status, body = await client.get(f"{url}/item/{item}")
                assert status == 200
                return body.decode()

            # Open the connections first: they are not measured.
            await run(fetch, items[:limit], limit)
            began = WALL()
            await run(fetch, items, limit)
            return WALL() - began

    def measured() -> float:
        with _service() as url:
            return anyio.run(main, url, backend=backend)

    return measured


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
