"""Databases for the tests: SQLite files, and a PostgreSQL server if one is installed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent._postgres import Server, running_postgres

from ._server import Shop, new_role, new_template
from ._shop import new_shop


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a shop in SQLite."""
    return new_shop(tmp_path)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Start one server for all tests; each test has a database of its own."""
    with running_postgres() as server:
        new_role(server)
        new_template(server)
        yield server


@pytest.fixture
def shop(server: Server) -> Iterator[Shop]:
    """Create a shop in PostgreSQL."""
    shop = Shop(server)
    try:
        yield shop
    finally:
        shop.drop()
