"""Cost of a place at a local limit and at limits shared through Redis and PostgreSQL on this machine."""

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio

from callboard import CallPolicy, Limit, ToolNode
from callboard.extend import SharedLimits
from callboard.testing import tool_call
from callboard_actors.postgres import PostgresLimits
from callboard_actors.redis import RedisLimits
from tests.agent._postgres import Server, programs
from tests.helpers import make
from tests.server.limits._redis import RedisServer, program

from ._measure import WALL, Table

BACKENDS = ("asyncio", "trio")
_SILENCE = 2.5
"""Seconds during which a server that has just started grants no places. The results do not include them."""


def places(*, calls: int, width: int) -> Table:
    """Measure sequential calls without contention, then many at once, most of which wait."""
    table = Table("Places", ["", *BACKENDS])
    with _stores() as stores:
        for name, shared in stores.items():
            alone, crowd = zip(*(_seconds(shared, calls, width, backend) for backend in BACKENDS), strict=True)
            table.add(f"{name}: one call at a time, p50, us", *(one * 1e6 for one in alone))
            table.add(f"{name}: {calls} at once, {width} may run, us each", *(one * 1e6 for one in crowd))
    return table


@contextmanager
def _stores() -> "Iterator[Mapping[str, SharedLimits | None]]":
    redis, postgres = program(), programs()
    assert redis is not None and postgres is not None, "apt-get install redis-server postgresql"
    servers: list[Any] = [RedisServer(redis), Server(postgres)]
    for server in servers:
        server.start()
    stores = [RedisLimits(servers[0].url, lease=_SILENCE - 1), PostgresLimits(servers[1].url())]
    anyio.run(anyio.sleep, _SILENCE)
    try:
        yield {"in this process": None, "Redis": stores[0], "PostgreSQL": stores[1]}
    finally:
        for one in stores:
            one.close()
        for server in servers:
            server.remove()


def _seconds(shared: SharedLimits | None, calls: int, width: int, backend: str) -> tuple[float, float]:
    """Return the seconds of a call that finds a free place, and of one among many."""

    async def nothing(n: int) -> int:
        """Do nothing."""
        return n

    node = ToolNode([make(nothing)], policies={"nothing": CallPolicy(limit=Limit(concurrency=width, shared=shared))})
    batch = [tool_call("nothing", f"c{n}", n=n) for n in range(calls)]

    async def measure() -> tuple[float, float]:
        alone: list[float] = []
        for one in batch:
            began = WALL()
            await node.ainvoke([one])
            alone.append(WALL() - began)
        began = WALL()
        await node.ainvoke(batch)
        return statistics.median(alone), (WALL() - began) / calls

    return anyio.run(measure, backend=backend)
