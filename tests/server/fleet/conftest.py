"""Servers that store the keys of fleets: one in memory for quick tests, and real ones."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from callboard_actors.postgres import PostgresFleet
from callboard_actors.redis import RedisFleet
from tests.server.limits.conftest import own_postgres, own_redis, postgres_url, redis_server

from ._memory import SECRET, MemoryFleet, MemoryServer
from ._world import LEASE, LOGS, Fleets

__all__ = ["own_postgres", "own_redis", "postgres_url", "redis_server"]

_numbers = count(1)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    return {"secret": SECRET, "lease": LEASE, **given}


@pytest.fixture(
    params=[
        "memory",
        pytest.param("redis", marks=pytest.mark.exhaustive),
        pytest.param("postgres", marks=pytest.mark.exhaustive),
    ]
)
def fleets(request: pytest.FixtureRequest) -> Fleets:
    """Return a factory of fleets; each fleet acts as a separate process."""
    prefix = f"fleet-{next(_numbers)}"
    if request.param == "memory":
        server = MemoryServer()
        return lambda **given: MemoryFleet(server, **{"lease": LEASE, **given})
    if request.param == "redis":
        url = request.getfixturevalue("redis_server").url
        return lambda **given: RedisFleet(url, prefix=prefix, **_options(given))
    url = request.getfixturevalue("postgres_url")
    return lambda **given: PostgresFleet(url, prefix=prefix, **_options(given))


@pytest.fixture
def log() -> Iterator[str]:
    """Return the name of a new log."""
    name = f"log-{next(_numbers)}"
    yield name
    LOGS.pop(name, None)
