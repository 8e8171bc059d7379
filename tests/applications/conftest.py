"""The path of modules, and a PostgreSQL server for the recipe that reads databases, if one is installed."""

import sys
from collections.abc import Iterator

import pytest

from tests.agent._postgres import Server, running_postgres

from ._server import Shop, new_role, new_template
from .record_agents import ROOT


@pytest.fixture(autouse=True)
def _functions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the tests and the examples on the path, where worker processes look for functions."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT), str(ROOT / "examples")])


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
