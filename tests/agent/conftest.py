"""PostgreSQL server for tests of agents, if one is installed."""

from collections.abc import Iterator

import pytest

from ._postgres import Server, programs


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A server for all tests; each test uses a database of its own."""
    if (found := programs()) is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    server = Server(found)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """URL of a new, empty database."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop(url)
