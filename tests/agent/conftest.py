"""A time limit for every test of an agent, and a PostgreSQL server, if one is installed."""

import inspect
from collections.abc import Iterator
from functools import wraps
from typing import Any

import anyio
import pytest

from ._postgres import Server, programs

WAIT = 20
"""Seconds after which an async test fails; a module may set another `WAIT`."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Bound every wait of an async test; on a virtual clock, a wait that does not end takes no time."""
    test: Any = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test) or hasattr(test, "hypothesis"):
        return
    is_real = pyfuncitem.get_closest_marker("real_clock") is not None
    seconds = getattr(pyfuncitem.module, "WAIT", WAIT) if is_real else 100_000

    @wraps(test)
    async def bounded(**fixtures: Any) -> None:
        with anyio.fail_after(seconds):
            await test(**fixtures)

    pyfuncitem.obj = bounded


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
