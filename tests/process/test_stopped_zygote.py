"""Pools whose zygote stands still because it was stopped or gets no processor time."""

import os
import signal
from pathlib import Path

import anyio
import pytest

from callboard_actors.process import Confine, Processes, _crew
from tests.helpers import until

from . import _bodies as bodies
from ._processes import WAIT, confine_here, descendants, open_pool, running, wait_for_starts, zygote_of

pytestmark = pytest.mark.real_clock


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("confine", [None, confine_here()], ids=["trusted", "confined"])
async def test_a_pool_whose_zygote_was_stopped_leaves_no_process(
    confine: Confine | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped zygote cannot end its workers, so all of them are killed with it."""
    monkeypatch.setattr(_crew, "_END_REPORT_TIMEOUT", 0.2)
    before = descendants(os.getpid())
    with anyio.fail_after(WAIT):
        async with Processes(workers=2, grace=0.2, confine=confine) as pool:
            below = descendants(os.getpid()) - before
            os.kill(zygote_of(pool), signal.SIGSTOP)
        await until(lambda: not running(below), WAIT)


async def test_a_pool_whose_zygote_stands_still_closes_in_bounded_time_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a process that left its group is ended, which normally only a running zygote can find."""
    monkeypatch.setattr(_crew, "_END_REPORT_TIMEOUT", 0.2)
    before = descendants(os.getpid())
    with anyio.fail_after(WAIT):
        async with Processes(workers=2, grace=0.1) as pool, anyio.create_task_group() as group:
            group.start_soon(pool.run, bodies.daemonise, str(tmp_path))
            daemon = await wait_for_starts(tmp_path, 2)
            below = descendants(os.getpid()) - before
            os.kill(zygote_of(pool), signal.SIGSTOP)
            group.cancel_scope.cancel()
        assert daemon <= below
        await until(lambda: not running(below), WAIT)


async def test_a_call_that_is_cancelled_does_not_wait_for_a_zygote_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool whose zygote stands still starts another one and goes on."""
    monkeypatch.setattr(_crew, "_END_REPORT_TIMEOUT", 0.2)
    async with open_pool(grace=0.1) as pool:
        async with anyio.create_task_group() as group:
            group.start_soon(pool.run, bodies.wait_for_ever, str(tmp_path))
            busy = await wait_for_starts(tmp_path)
            os.kill(zygote_of(pool), signal.SIGSTOP)
            group.cancel_scope.cancel()
        await until(lambda: not running(busy), WAIT)
        assert await pool.run(len, "four") == 4
