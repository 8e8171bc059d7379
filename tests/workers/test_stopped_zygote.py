"""Pools whose zygote stands still: somebody has stopped it, or the system does not let it run."""

import os
import signal
from pathlib import Path

import anyio
import pytest

from callboard_actors.process import Confine, Processes, _crew
from callboard_actors.process._zygote_proxy import ZygoteProxy

from . import _bodies as bodies
from ._processes import WAIT, confined_here, descendants, needs_bubblewrap, running, started, zygote_of

pytestmark = pytest.mark.real_clock


@pytest.fixture
def stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a stopped zygote stay so, as one would that the kernel does not let run."""

    def stay(self: ZygoteProxy) -> None: ...

    monkeypatch.setattr(ZygoteProxy, "go_on", stay)


async def _gone(pids: set[int]) -> None:
    """Wait until all of them have ended; init takes its time to ask how."""
    with anyio.fail_after(WAIT):
        while running(pids):
            await anyio.sleep(0.005)


CONFINED = [None, confined_here(), pytest.param("bubblewrap", marks=needs_bubblewrap)]


@pytest.mark.parametrize("confine", CONFINED, ids=["trusted", "confined", "bubblewrap"])
async def test_a_pool_whose_zygote_was_stopped_closes_in_order(confine: Confine | str | None) -> None:
    """It is continued, so that it can end what workers have started; closing it had waited for ever."""
    given = confined_here(isolation="bubblewrap") if isinstance(confine, str) else confine
    before = descendants(os.getpid())
    with anyio.fail_after(WAIT):
        async with Processes(workers=2, grace=0.2, confine=given) as pool:
            zygote = zygote_of(pool)
            os.kill(zygote, signal.SIGSTOP)
        assert descendants(os.getpid()) == before


@pytest.mark.usefixtures("stands_still")
async def test_a_pool_whose_zygote_stands_still_closes_in_bounded_time_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that had left its process group, which only a zygote that runs would find."""
    monkeypatch.setattr(_crew, "_UNHEARD", 0.2)
    before = descendants(os.getpid())
    with anyio.fail_after(WAIT):
        async with Processes(workers=2, grace=0.1) as pool, anyio.create_task_group() as group:
            group.start_soon(pool.run, bodies.daemonise, str(tmp_path))
            daemon = await started(tmp_path, 2)
            below = descendants(os.getpid()) - before
            os.kill(zygote_of(pool), signal.SIGSTOP)
            group.cancel_scope.cancel()
        assert daemon <= below
        await _gone(below)


@pytest.mark.usefixtures("stands_still")
async def test_the_closing_of_a_pool_whose_zygote_stands_still_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the grace then, and little more; nothing is left all the same."""
    monkeypatch.setattr(_crew, "_UNHEARD", 10_000.0)
    before = descendants(os.getpid())
    with anyio.fail_after(WAIT):
        with anyio.CancelScope() as scope:
            async with Processes(workers=1, grace=0.1) as pool:
                below = descendants(os.getpid()) - before
                os.kill(zygote_of(pool), signal.SIGSTOP)
                scope.cancel()
                await anyio.sleep(0)
        assert scope.cancelled_caught
        await _gone(below)


@pytest.mark.usefixtures("stands_still")
async def test_a_call_that_is_cancelled_does_not_wait_for_a_zygote_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another zygote takes its place, and the pool goes on."""
    monkeypatch.setattr(_crew, "_UNHEARD", 0.2)
    with anyio.fail_after(WAIT):
        async with Processes(workers=1, grace=0.1) as pool:
            async with anyio.create_task_group() as group:
                group.start_soon(pool.run, bodies.wait_for_ever, str(tmp_path))
                busy = await started(tmp_path)
                os.kill(zygote_of(pool), signal.SIGSTOP)
                group.cancel_scope.cancel()
            await _gone(busy)
            assert await pool.run(len, "four") == 4
