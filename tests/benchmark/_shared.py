"""Cost of places at limits that are shared through Redis and PostgreSQL on this machine."""

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from callboard import CallPolicy, Limit, ToolNode, tool_call
from callboard.extend import SharedLimits
from callboard_actors.postgres import PostgresLimits
from callboard_actors.redis import RedisLimits
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
    node = ToolNode([make(nothing)], policies={"nothing": CallPolicy(limit=Limit(concurrency=width, shared=shared))})
    batch = [tool_call("nothing", f"c{n}", n=n) for n in range(calls)]

    async def measure() -> tuple[float, float]:
        alone = await median_of(lambda: node.ainvoke(batch[:1]), calls)
        began = WALL()
        await node.ainvoke(batch)
        return alone, (WALL() - began) / calls

    return anyio.run(measure, backend=backend)
