"""Bound of async tests in virtual or real seconds, and a recorder, for all tests of middleware."""

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from callboard.testing import Recorder


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """End an async test after the seconds `WAIT` of its module: a call that never ends would hang the run."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test) or hasattr(test, "hypothesis") or not hasattr(pyfuncitem.module, "WAIT"):
        return (yield)

    @functools.wraps(test)
    async def bounded(*args: Any, **kwargs: Any) -> None:
        with anyio.fail_after(pyfuncitem.module.WAIT):
            await test(*args, **kwargs)

    pyfuncitem.obj = bounded
    return (yield)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
