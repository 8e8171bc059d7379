"""Cost of a shared circuit and a shared cache in Redis and in PostgreSQL, compared with local ones."""

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio

from callboard import SharedDocuments, ToolNode
from callboard.middleware import Cache, CircuitBreaker
from callboard.testing import tool_call
from callboard_actors.postgres import PostgresDocuments
from callboard_actors.redis import RedisDocuments
from tests.agent._postgres import Server, programs
from tests.helpers import make
from tests.server.limits._redis import RedisServer, program

from ._measure import WALL, Table

BACKENDS = ("asyncio", "trio")


def documents(*, calls: int) -> Table:
    """Measure sequential calls: through a closed circuit, with a cache miss, and with a cache hit."""
    table = Table("Circuits and results", ["", *BACKENDS])
    with _stores() as stores:
        for name, shared in stores.items():
            found = [_seconds(shared, calls, backend) for backend in BACKENDS]
            for what, seconds in zip(
                ("closed circuit", "no result yet", "result"), zip(*found, strict=True), strict=True
            ):
                table.add(f"{name}: {what}, p50, us", *(one * 1e6 for one in seconds))
    return table


@contextmanager
def _stores() -> "Iterator[Mapping[str, SharedDocuments | None]]":
    redis, postgres = program(), programs()
    assert redis is not None and postgres is not None, "apt-get install redis-server postgresql"
    servers: list[Any] = [RedisServer(redis), Server(postgres)]
    for server in servers:
        server.start()
    stores = [RedisDocuments(servers[0].url, patience=10.0), PostgresDocuments(servers[1].url(), patience=10.0)]
    try:
        yield {"in this process": None, "Redis": stores[0], "PostgreSQL": stores[1]}
    finally:
        for one in stores:
            one.close()
        for server in servers:
            server.remove()


def _seconds(shared: SharedDocuments | None, calls: int, backend: str) -> tuple[float, float, float]:
    """Return the seconds of a call through a closed circuit, of a cache miss, and of a cache hit."""

    async def nothing(n: int) -> int:
        """Do nothing."""
        return n

    tool = make(nothing)
    name = None if shared is None else backend
    behind = ToolNode([tool], middleware=[CircuitBreaker(shared=shared, name=name)])
    cached = ToolNode([tool], middleware=[Cache({"nothing"}, size=calls, shared=shared, name=name, key=_number)])

    async def median(node: ToolNode) -> float:
        took: list[float] = []
        for number in range(calls):
            began = WALL()
            await node.ainvoke([tool_call("nothing", f"c{number}", n=number)])
            took.append(WALL() - began)
        return statistics.median(took)

    async def measure() -> tuple[float, float, float]:
        circuit, miss = await median(behind), await median(cached)
        await anyio.sleep(0.1)
        return circuit, miss, await median(cached)

    return anyio.run(measure, backend=backend)


def _number(request: Any) -> int:
    return int(request.tool_call["args"]["n"])
