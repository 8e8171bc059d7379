"""What tests of agents share: a PostgreSQL server, if there is one to be had."""

from collections.abc import Iterator

import pytest

from ._postgres import Server, programs


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A server for all tests; each takes a database of its own."""
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
    """A database that nobody has used."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop(url)
