"""A Redis and a PostgreSQL server for all tests of shared limits, if they are installed, and stores on them."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from callboard_actors._server.limits._store import LimitStore
from callboard_actors.postgres import PostgresLimits
from callboard_actors.redis import RedisLimits
from tests.agent._postgres import Server, programs

from ._redis import RedisServer, program
from ._world import Stores, closing


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Start one server for all tests; each test has its own keys. It has already run longer than a lease."""
    for server in _running_redis():
        server.wait_until_up_for(seconds=2)
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """Start a server for one test that kills it."""
    yield from _running_redis()


def _running_redis() -> Iterator[RedisServer]:
    if (found := program()) is None:
        pytest.skip("Redis is not installed: apt-get install redis-server")
    server = RedisServer(found)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Return a database for all tests; each test has limits of its own."""
    if (found := programs()) is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    server = Server(found)
    try:
        server.start()
        yield server.new_database()
    finally:
        server.remove()


def _on_postgres(url: str, number: int, **options: Any) -> LimitStore:
    return PostgresLimits(url, prefix=f"test-{number}", **options)


def _on_redis(url: str, number: int, **options: Any) -> LimitStore:
    return RedisLimits(url, prefix=f"test-{number}", **options)


@pytest.fixture(params=["redis", "postgres"])
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    """Return a factory of stores; each store acts as a separate process."""
    if request.param == "redis":
        make = partial(_on_redis, request.getfixturevalue("redis_server").url)
    else:
        make = partial(_on_postgres, request.getfixturevalue("postgres_url"))
    with closing(make) as made:
        yield made


@pytest.fixture
def own_postgres() -> Iterator[Server]:
    """Start a PostgreSQL server for a test that crashes it."""
    if (found := programs()) is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    server = Server(found)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def own_stores(own_redis: RedisServer) -> Iterator[Stores]:
    """Return a factory of stores on a Redis that the test may kill."""
    with closing(partial(_on_redis, own_redis.url)) as made:
        yield made
