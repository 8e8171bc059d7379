"""Redis and PostgreSQL servers for all tests of shared state, if they are installed, and fakes of them in memory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.agent._postgres import Server as PostgresServer
from tests.agent._postgres import running_postgres

from ._servers import Place, RedisServer, running_redis, server_url
from .fleet._memory import MemoryFleet, MemoryServer
from .fleet._world import LEASE, LOGS, Fleets
from .limits._world import Stores, stores_on

SERVERS = ["redis", "postgres"]


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Start one server for all tests; each test has its own keys. It has already run longer than a lease."""
    with running_redis(uptime=2) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Return a database for all tests."""
    with running_postgres() as server:
        yield server.new_database()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """Start a server for one test that kills it."""
    with running_redis() as server:
        yield server


@pytest.fixture
def locked_redis() -> Iterator[RedisServer]:
    """Start a server that wants a password."""
    with running_redis("--requirepass", "secret") as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """Start a server for one test that crashes it."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    return server_url(request, request.param)


@contextmanager
def _closing(url: str) -> Iterator[Place]:
    place = Place(url)
    try:
        yield place
    finally:
        place.close()


@pytest.fixture
def stores(url: str) -> Iterator[Stores]:
    """Return a factory of stores of limits."""
    with _closing(url) as place:
        yield stores_on(place)


@pytest.fixture
def own_stores(own_redis: RedisServer) -> Iterator[Stores]:
    """Return a factory of stores of limits on a Redis that the test may kill."""
    with _closing(own_redis.url) as place:
        yield stores_on(place)


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.exhaustive)])
def fleets(request: pytest.FixtureRequest) -> Fleets:
    """Return a factory of fleets; each fleet acts as a separate process."""
    make: Callable[..., Any]
    if request.param == "memory":
        server = MemoryServer()
        make = lambda **options: MemoryFleet(server, **options)
    else:
        place = Place(request.getfixturevalue("postgres_url"))
        make = lambda **options: place.store("fleet", **options)
    return lambda **options: make(**{"lease": LEASE, **options})


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.node.nodeid
    LOGS.pop(request.node.nodeid, None)
