"""Checkpointers for tests of agents, and a PostgreSQL server, if one is installed."""

import gc
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ._forks import Forks
from ._postgres import Server, programs
from ._savers import SAVERS, saver_of

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with two variants, run the first one on asyncio and the second one on trio; CI runs both on both."""
    if any("::" in argument for argument in config.args):
        return  # the command line names the tests to run
    variants: dict[tuple[Path, str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            if item.get_closest_marker("exhaustive") is None and "anyio_backend" in item.callspec.params:
                backend, _ = item.callspec.params["anyio_backend"]
                variants[item.path, item.originalname, backend].append(item)
    for (_, _, backend), alike in variants.items():
        if len(alike) == 2:
            alike[0 if backend == "trio" else 1].add_marker(pytest.mark.exhaustive)


@pytest.fixture(autouse=True, scope="session")
def _quick_collector() -> Iterator[None]:
    """Freeze imported objects, so that each search for garbage takes a millisecond."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A process for all tests, whose forks run functions of theirs."""
    with Forks() as made:
        yield made


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


@pytest.fixture(params=SAVERS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """Each kind of checkpointer."""
    async with saver_of(request.param, tmp_path / "db") as made:
        yield made
