"""Functions that workers can find by name, and the errors for functions that they cannot find."""

import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from callboard_actors.process import Processes

from . import _bodies as bodies
from . import _decorated, _decorated_tools
from ._processes import WAIT, opened

pytestmark = pytest.mark.real_clock


async def test_functions_behind_decorators_are_found() -> None:
    """Wrapped functions are found behind the object under their name; methods are sent with their objects."""
    async with opened() as pool:
        for fn in (_decorated.double.fn, _decorated.triple.fn):
            pool.check(fn, title="tool")
        assert await pool.run(_decorated.double.fn, 2) == 4
        assert await pool.run(_decorated.triple.fn, 2) == 6
        assert await pool.run(inspect.unwrap(_decorated.triple.fn), 2) == 6
        assert await pool.run(partial(_decorated.double.fn, 4)) == 8
        assert await pool.run(_decorated.Counter(3).plus, 2) == 5


@pytest.mark.exhaustive
async def test_functions_of_langchains_tools_are_found() -> None:
    """`@tool` puts a tool object under the name of the function, in nearly every LangChain program."""
    tools: list[Any] = [_decorated_tools.halve, _decorated_tools.halve_later]
    pool = Processes(workers=1)
    with anyio.fail_after(WAIT):
        async with pool:
            for fn in (tools[0].func, tools[1].coroutine):
                pool.check(fn, title="halve")
                assert await pool.run(fn, 3) == 1.5


def _lists() -> Any:
    yield 1


async def _lists_later() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda: 1, "'tool' cannot run in a worker process: its function, which has to be importable"),
        (_lists, "'tool' cannot run .* it is a generator function, .* have it return a list"),
        (_lists_later, "it is a generator function"),
        (partial(_lists), "it is a generator function"),
    ],
)
def test_what_no_worker_could_run_is_refused_with_a_remedy(fn: Callable[..., Any], message: str) -> None:
    """The error is raised when the node is built."""
    with pytest.raises(TypeError, match=message):
        Processes().check(fn, title="tool")


async def test_modules_of_checked_functions_are_preloaded() -> None:
    """Preloading saves the import in each worker."""
    pool = Processes(workers=1)
    pool.check(_decorated.double.fn, title="double")
    with anyio.fail_after(WAIT):
        async with pool:
            assert await pool.run(bodies.is_loaded, _decorated.__name__)


async def test_modules_that_cannot_be_preloaded_are_left_to_the_workers(caplog: pytest.LogCaptureFixture) -> None:
    """A module that starts a thread or ends its process is logged and skipped; the others are still preloaded."""
    caplog.set_level(logging.INFO, "callboard_actors.process")
    pool = Processes(workers=1)
    thread = f"{__package__}._starts_a_thread"
    for name in ("no_such_module", thread):
        pool._wanted[name] = None
    pool.check(_decorated.double.fn, title="double")
    with anyio.fail_after(WAIT):
        async with pool:
            assert await pool.run(bodies.is_loaded, _decorated.__name__)
            assert not await pool.run(bodies.is_loaded, thread)

    said = [record.getMessage() for record in caplog.records if record.name == "callboard_actors.process"]
    assert said == [f"{thread} starts threads or ends its process, so each worker loads it by itself"]
