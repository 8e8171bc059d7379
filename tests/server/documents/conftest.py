"""Places for the documents of these tests: memory, Redis and PostgreSQL."""

from collections.abc import Iterator
from functools import partial

import pytest

from callboard_actors._server.documents._store import DocumentStore
from callboard_actors.postgres import PostgresDocuments
from callboard_actors.redis import RedisDocuments
from tests.server.limits.conftest import own_postgres as own_postgres
from tests.server.limits.conftest import own_redis as own_redis
from tests.server.limits.conftest import postgres_url as postgres_url
from tests.server.limits.conftest import redis_server as redis_server

from ._world import MemoryWorld, World, closing

SERVERS = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("redis", "postgres")]


@pytest.fixture(params=["memory", *SERVERS])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Return a server with stores, in memory or real."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    with closing(_maker(request, request.param)) as made:
        yield made


@pytest.fixture(params=SERVERS)
def server_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Return a real server with stores."""
    with closing(_maker(request, request.param)) as made:
        yield made


def _maker(request: pytest.FixtureRequest, kind: str) -> "partial[DocumentStore]":
    if kind == "redis":
        return partial(RedisDocuments, request.getfixturevalue("redis_server").url)
    return partial(PostgresDocuments, request.getfixturevalue("postgres_url"))
