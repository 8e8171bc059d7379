"""Calls that end in odd ways: before they began, by what nobody asked for, with what is hard to send."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.engines import Body
from callboard_actors.process import Processes, WorkerDiedError

from . import _bodies as bodies
from . import _odd_bodies as odd
from ._processes import WAIT, started

pytestmark = pytest.mark.real_clock


def _body(fn: Callable[..., Any], *args: Any, grace: float | None = None) -> Body:
    return Body(fn=fn, args=args, title=fn.__name__, grace=grace)


async def test_a_call_of_a_seat_that_is_cancelled_before_it_runs_leaves_the_seat_alive(tmp_path: Path) -> None:
    """Call and cancellation are read at once by a worker that was busy; it answers all the same, and runs nothing."""
    here, go, mark = tmp_path / "here", tmp_path / "go", tmp_path / "mark"
    here.mkdir()
    found: list[str] = []

    async def busy(seat: Any) -> None:
        found.append(await seat.run_body(_body(odd.block_until, str(here), str(go))))

    with anyio.fail_after(WAIT):
        async with Processes(workers=1, grace=5.0) as pool, pool.seat("owner") as seat:
            async with anyio.create_task_group() as outer:
                outer.start_soon(busy, seat)
                await started(here)
                async with anyio.create_task_group() as inner:
                    inner.start_soon(seat.run_body, _body(odd.leave_a_mark, str(mark)))
                    await anyio.wait_all_tasks_blocked()  # it has been sent
                    inner.cancel_scope.cancel()
                    outer.start_soon(_touch_when_all_wait, go)
            assert (await seat.run_body(_body(bodies.add_later, 1, 2)))[0] == 3

    assert found == ["went on"]
    assert not mark.exists()


async def _touch_when_all_wait(path: Path) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.wait_all_tasks_blocked()
    path.touch()


async def test_a_call_of_a_seat_that_nobody_cancelled_is_unknown_when_its_process_is_interrupted() -> None:
    """SIGINT cancels all that runs there; nothing of it has finished, and nobody may believe so."""
    with anyio.fail_after(WAIT):
        async with Processes(workers=1) as pool, pool.seat("owner") as seat:
            with pytest.raises(WorkerDiedError, match="exited with code 1") as caught:
                await seat.run_body(_body(odd.interrupt_oneself))

    assert caught.value.ended == "unknown"


async def test_a_body_that_raises_that_a_worker_died_is_run_once(tmp_path: Path) -> None:
    """The error is of a pool that the body has; its own worker lives, and it has had its effect."""
    runs = tmp_path / "runs"
    with anyio.fail_after(WAIT):
        async with Processes(workers=1) as pool:
            before = pool.pids
            with pytest.raises(WorkerDiedError, match="'inner' was not started"):
                await pool.run(odd.lose_an_inner_worker, str(runs))
            assert await pool.run(bodies.pid) == before[0]

    assert runs.read_text() == "x"
