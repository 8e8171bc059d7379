"""Cancelled calls in workers end, whatever they do, and leave nothing behind."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from callboard_actors._engine import _kernel
from callboard_actors.process import Processes, WorkerDiedError
from callboard_actors.process._crew import Crew
from callboard_actors.process._worker_proxy import WorkerProxy
from tests.helpers import until

from . import _bodies as bodies
from ._processes import WAIT, alive, descendants, only_workers_beside, open_fds, open_pool, wait_for_starts, zygote_of

pytestmark = [pytest.mark.real_clock, pytest.mark.usefixtures("any_start")]

GRACE = 0.2
SLACK = 1.0
"""Additional seconds for a busy machine."""


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize(
    "body",
    [
        bodies.spin_in_c,
        bodies.sleep_in_c,
        bodies.ignore_sigterm,
        bodies.fork_a_grandchild,
        bodies.daemonise,
        pytest.param(bodies.spin_in_python, marks=pytest.mark.exhaustive),
    ],
)
async def test_a_cancelled_call_is_gone_within_its_grace_with_all_that_it_has_started(
    tmp_path: Path, body: Callable[[str], None]
) -> None:
    """A thread could not be stopped; after `run` the worker, its children and their children have ended."""
    async with open_pool(workers=2, grace=GRACE) as pool:
        helpers = descendants(os.getpid()) - set(pool.pids)
        async with anyio.create_task_group() as group:
            group.start_soon(pool.run, body, str(tmp_path))
            count = 2 if body in (bodies.fork_a_grandchild, bodies.daemonise) else 1
            busy = await wait_for_starts(tmp_path, count)
            began = time.monotonic()
            group.cancel_scope.cancel()
        took = time.monotonic() - began

        assert alive(busy) == set()
        assert took < GRACE + SLACK
        await until(lambda: len(pool.pids) >= 2, WAIT)
        await only_workers_beside(pool, helpers)
        assert await pool.run(bodies.add, 1, 2) == 3


async def test_who_stops_waiting_for_a_worker_disturbs_nobody(tmp_path: Path) -> None:
    """A call that has no worker yet can be cancelled without killing any worker."""
    async with open_pool(grace=0) as pool, anyio.create_task_group() as group:
        group.start_soon(pool.run, bodies.wait_for_ever, str(tmp_path))
        busy = await wait_for_starts(tmp_path)
        with anyio.move_on_after(0.05) as scope:
            await pool.run(bodies.add, 1, 2)
        assert scope.cancelled_caught
        assert alive(busy) == busy
        group.cancel_scope.cancel()


async def test_an_idle_worker_that_is_killed_fails_nobody() -> None:
    """No call fails, because the next call gets another worker."""
    async with open_pool() as pool:
        for _ in range(5):
            await until(lambda: len(pool.pids) >= 1, WAIT)
            os.kill(pool.pids[0], signal.SIGKILL)
            assert await pool.run(bodies.add, 1, 2) == 3


async def test_a_killed_zygote_is_replaced_with_all_its_workers(tmp_path: Path) -> None:
    """The kernel ends the workers with their zygote, and their calls fail with an error that says so."""
    async with open_pool(workers=2, grace=0) as pool:
        before = set(pool.pids)
        zygote = zygote_of(pool)
        async with anyio.create_task_group() as group:

            async def run_until_killed() -> None:
                with pytest.raises(WorkerDiedError, match="lost with the zygote"):
                    await pool.run(bodies.wait_for_ever, str(tmp_path))

            group.start_soon(run_until_killed)
            await wait_for_starts(tmp_path)
            os.kill(zygote, signal.SIGKILL)
        assert await pool.run(bodies.add, 1, 2) == 3
        await until(lambda: len(pool.pids) >= 2, WAIT)
        assert before.isdisjoint(pool.pids)


async def test_closing_the_pool_ends_calls_of_others_and_leaves_nothing(tmp_path: Path) -> None:
    """A call in a task that outlives the pool's block gets an error that the pool was closed."""
    before = descendants(os.getpid())
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:

            async def outliving() -> None:
                with pytest.raises(WorkerDiedError, match="its pool of processes was closed"):
                    await pool.run(bodies.ignore_sigterm, str(tmp_path))

            async with Processes(workers=2, grace=GRACE) as pool:
                group.start_soon(outliving)
                await wait_for_starts(tmp_path)

    assert descendants(os.getpid()) == before


async def test_a_cancelled_block_leaves_nothing(tmp_path: Path) -> None:
    """Clean-up of a cancelled pool continues until every worker has ended."""
    before = descendants(os.getpid())
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:

            async def block() -> None:
                async with Processes(workers=2, grace=GRACE) as pool:
                    await pool.run(bodies.ignore_sigterm, str(tmp_path))

            group.start_soon(block)
            await wait_for_starts(tmp_path)
            group.cancel_scope.cancel()

    assert descendants(os.getpid()) == before


@pytest.mark.exhaustive
async def test_a_start_that_is_cancelled_at_any_time_leaves_nothing() -> None:
    """The start can be cancelled before the zygote exists, while it loads modules, and while it forks."""
    before = descendants(os.getpid())
    fds = None
    for step in range(25):
        with anyio.fail_after(WAIT), anyio.move_on_after(step * 0.004):
            async with Processes(workers=2, grace=0):
                await anyio.sleep_forever()
        fds = fds or open_fds()
        assert descendants(os.getpid()) == before
        assert open_fds() == fds


@pytest.mark.exhaustive
@pytest.mark.hangs_after(600)
@pytest.mark.parametrize("count", [50, pytest.param(1_000, marks=pytest.mark.exhaustive)])
async def test_many_kills_leave_no_process_no_file_and_no_zombie(tmp_path: Path, count: int) -> None:
    """A small leak with each kill would end a service after a week."""
    if count == 1_000 and not _kernel.FORKS:
        pytest.skip("each kill costs a new interpreter")
    each = 0.2 if _kernel.FORKS else 2.0  # each worker is a new interpreter
    with anyio.fail_after(WAIT + count * each):
        async with Processes(workers=2, grace=0, preload=[bodies.__name__]) as pool:
            helpers = descendants(os.getpid()) - set(pool.pids)
            fds = open_fds()
            for number in range(count):
                folder = tmp_path / str(number)
                folder.mkdir()
                async with anyio.create_task_group() as group:
                    group.start_soon(pool.run, bodies.fork_a_grandchild, str(folder))
                    busy = await wait_for_starts(folder, 2)
                    group.cancel_scope.cancel()
                assert alive(busy) == set()
            await until(lambda: len(pool.pids) >= 2, WAIT)

            await only_workers_beside(pool, helpers)
            assert open_fds() == fds


async def test_a_worker_that_is_given_back_after_its_end_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may end while its reply is read; it is given back when its place has another worker already."""
    offered: list[tuple[Crew, WorkerProxy]] = []
    offer_worker = Crew.offer_worker

    def keep_used_worker(crew: Crew, worker: WorkerProxy) -> None:
        if worker.call_count:
            offered.append((crew, worker))
        else:  # a new one
            offer_worker(crew, worker)

    async def kill_worker(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        await until(lambda: pool.pids and pid not in pool.pids, WAIT)

    async with open_pool(workers=1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(Crew, "offer_worker", keep_used_worker)
            assert await pool.run(bodies.add, 1, 2) == 3
        [(crew, worker)] = offered
        await kill_worker(worker.pid)
        crew.offer_worker(worker)
        for pid in pool.pids:  # so that the dead one is the next to be taken
            await kill_worker(pid)

        assert [await pool.run(bodies.add, 1, n) for n in range(3)] == [1, 2, 3]
