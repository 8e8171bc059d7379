"""Cost of places at limits, circuits and caches that are shared through Redis and PostgreSQL on this machine."""

from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import Any

import anyio

from callboard import CallPolicy, Limit, SharedDocuments, ToolNode
from callboard.extend import SharedLimits
from callboard.middleware import Cache, CircuitBreaker
from callboard.testing import tool_call
from callboard_actors.postgres import PostgresDocuments, PostgresLimits
from callboard_actors.redis import RedisDocuments, RedisLimits
from tests.agent._postgres import Server, running_postgres
from tests.helpers import make
from tests.server._servers import RedisServer, running_redis

from ._measure import BACKENDS, WALL, Table, median_of

_SILENCE = 2.5
"""Seconds during which a server that has just started grants no places. The results do not include them."""


async def nothing(n: int) -> int:
    """Do nothing."""
    return n


@contextmanager
def servers() -> Generator[tuple[RedisServer, Server]]:
    """Start a Redis server and a PostgreSQL server for the block."""
    with running_redis() as redis, running_postgres() as postgres:
        yield redis, postgres


def places(*, calls: int, width: int) -> Table:
    """Measure sequential calls without contention, then many at once, most of which wait."""
    table = Table("Places", ["", *BACKENDS])
    with servers() as (redis, postgres):
        stores = [RedisLimits(redis.url, lease=_SILENCE - 1), PostgresLimits(postgres.url())]
        anyio.run(anyio.sleep, _SILENCE)
        for name, shared in zip(("in this process", "Redis", "PostgreSQL"), (None, *stores), strict=True):
            alone, crowd = zip(*(_place(shared, calls, width, backend) for backend in BACKENDS), strict=True)
            table.add(f"{name}: one call at a time, p50, us", *(one * 1e6 for one in alone))
            table.add(f"{name}: {calls} at once, {width} may run, us each", *(one * 1e6 for one in crowd))
        for one in stores:
            one.close()
    return table


def _place(shared: SharedLimits | None, calls: int, width: int, backend: str) -> tuple[float, float]:
    """Return the seconds of a call that finds a free place, and of one among many."""
    node = ToolNode([make(nothing)], policies={"nothing": CallPolicy(limit=Limit(concurrency=width, shared=shared))})
    batch = [tool_call("nothing", f"c{n}", n=n) for n in range(calls)]

    async def measure() -> tuple[float, float]:
        alone = await median_of(lambda: node.ainvoke(batch[:1]), calls)
        began = WALL()
        await node.ainvoke(batch)
        return alone, (WALL() - began) / calls

    return anyio.run(measure, backend=backend)


def documents(*, calls: int) -> Table:
    """Measure sequential calls: through a closed circuit, with a cache miss, and with a cache hit."""
    table = Table("Circuits and results", ["", *BACKENDS])
    with servers() as (redis, postgres):
        stores = [RedisDocuments(redis.url, patience=10.0), PostgresDocuments(postgres.url(), patience=10.0)]
        for name, shared in zip(("in this process", "Redis", "PostgreSQL"), (None, *stores), strict=True):
            found = zip(*(_document(shared, calls, backend) for backend in BACKENDS), strict=True)
            for what, seconds in zip(("closed circuit", "no result yet", "result"), found, strict=True):
                table.add(f"{name}: {what}, p50, us", *(one * 1e6 for one in seconds))
        for one in stores:
            one.close()
    return table


def _document(shared: SharedDocuments | None, calls: int, backend: str) -> tuple[float, float, float]:
    """Return the seconds of a call through a closed circuit, of a cache miss, and of a cache hit."""
    name = None if shared is None else backend
    behind = ToolNode([make(nothing)], middleware=[CircuitBreaker(shared=shared, name=name)])
    cache = Cache({"nothing"}, size=2 * calls, shared=shared, name=name, key=_number)
    cached = ToolNode([make(nothing)], middleware=[cache])

    async def median(node: ToolNode) -> float:
        numbers = count()
        return await median_of(lambda: node.ainvoke([tool_call("nothing", "c", n=next(numbers))]), calls)

    async def measure() -> tuple[float, float, float]:
        circuit, miss = await median(behind), await median(cached)
        await anyio.sleep(0.1)
        return circuit, miss, await median(cached)

    return anyio.run(measure, backend=backend)


def _number(request: Any) -> int:
    return int(request.tool_call["args"]["n"])
