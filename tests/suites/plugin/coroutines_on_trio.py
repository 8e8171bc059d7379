"""A pytest plugin that runs each coroutine test of a suite on trio; it takes the place of pytest-asyncio."""

import inspect
from functools import partial

import pytest
import trio


def pytest_addoption(parser: pytest.Parser) -> None:
    """Accept the settings of pytest-asyncio."""
    parser.addini("asyncio_mode", "ignored on trio")
    parser.addini("asyncio_default_fixture_loop_scope", "ignored on trio")


def pytest_configure(config: pytest.Config) -> None:
    """Accept the mark of pytest-asyncio."""
    config.addinivalue_line("markers", "asyncio: ignored on trio")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on trio."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    trio.run(partial(pyfuncitem.obj, **arguments))
    return True
