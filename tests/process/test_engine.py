"""Worker processes as an engine: calls, names in errors, and whether a failure would repeat itself."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.extend import Body, Engine
from callboard_actors.process import Processes, ResultLostError, WorkerDiedError
from tests.engines._contract import EngineContract

from . import _bodies as bodies
from ._processes import WAIT, open_pool, wait_for_starts

pytestmark = pytest.mark.real_clock


@pytest.mark.usefixtures("any_start")
async def test_a_body_runs_with_its_keywords_and_its_names_are_in_errors() -> None:
    """Errors name the tool that the model called, not the function behind it."""
    async with open_pool() as pool:
        assert await pool.run_body(Body(fn=bodies.add, args=(1,), kwargs={"other": 2}, title="sum")) == 3
        with pytest.raises(WorkerDiedError, match=r"^'leave' had begun") as died:
            await pool.run_body(Body(fn=bodies.end_with, kwargs={"code": 3}, title="leave", call_id="7"))
        with pytest.raises(ResultLostError, match=r"^'lose' has finished") as lost:
            await pool.run_body(Body(fn=bodies.return_unpicklable, title="lose", call_id="8"))
        with pytest.raises(TypeError, match=r"^'sum' cannot run .* its argument other \(<function"):
            await pool.run_body(Body(fn=bodies.add, args=(1,), kwargs={"other": lambda: 1}, title="sum"))

    assert (died.value.tool, died.value.call_id) == ("leave", "7")
    assert (lost.value.tool, lost.value.call_id, lost.value.ended) == ("lose", "8", "finished")


@pytest.mark.usefixtures("any_start")
async def test_the_grace_of_a_body_is_kept_where_it_is_the_shorter(tmp_path: Path) -> None:
    """The shorter of the pool's and the policy's grace period applies."""
    async with open_pool(grace=60) as pool, anyio.create_task_group() as group:
        body = Body(fn=bodies.ignore_sigterm, args=(str(tmp_path),), title="deaf", grace=0.1)
        group.start_soon(pool.run_body, body)
        await wait_for_starts(tmp_path)
        began = time.monotonic()
        group.cancel_scope.cancel()

    assert time.monotonic() - began < WAIT / 2


@pytest.mark.exhaustive
class TestProcesses(EngineContract):
    patience = 20.0

    def engine(self) -> Engine:
        return Processes(workers=2, grace=1.0, preload=["tests.engines._bodies"])

    async def kill(self, engine: Any, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


class TestInterpreters(TestProcesses):
    """Contract tests of an engine on new interpreters."""

    patience = 90.0

    def engine(self) -> Engine:
        # Three interpreters load it at once, which takes seconds each.
        return Processes(workers=2, start="spawn", grace=1.0, preload=["tests.engines._bodies"], start_timeout=WAIT * 3)
