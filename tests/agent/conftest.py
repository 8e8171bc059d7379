"""Checkpointers for tests of agents, and a PostgreSQL server, if one is installed."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ._forks import Forks
from ._postgres import Server, running_postgres
from ._savers import SAVERS, saver_of


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A process for all tests, whose forks run functions of theirs."""
    with Forks() as process:
        yield process


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A server for all tests; each test uses a database of its own."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """URL of a new, empty database."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop(url)


@pytest.fixture(params=SAVERS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """Each kind of checkpointer."""
    async with saver_of(request.param, tmp_path / "db") as opened_saver:
        yield opened_saver
