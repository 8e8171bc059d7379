"""Pools that are opened several times: in one event loop or in many, in turn or at once."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import anyio
import pytest
import sniffio

from callboard import ActorGoneError, ActorStartError
from callboard_actors.process import Processes, WorkerDiedError
from tests.helpers import until

from . import _bodies as bodies
from ._processes import ROOT, WAIT, below_us, descendants, open_fds, open_pool, wait_for_starts, zygote_of

pytestmark = [pytest.mark.real_clock, pytest.mark.usefixtures("any_start")]


@pytest.mark.backends("asyncio", "trio")
async def test_the_pool_begins_with_the_first_who_opens_it_and_ends_with_the_last() -> None:
    """A node, an actor and the program may open one pool and leave it in any order; it stays one pool."""
    pool = Processes(workers=1)
    before = descendants(os.getpid())
    may_leave = anyio.Event()
    has_left = anyio.Event()

    async def first() -> None:
        async with pool:
            await may_leave.wait()
        has_left.set()

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(first)
            async with pool:
                pids = pool.pids
                may_leave.set()
                await has_left.wait()
                async with pool:
                    assert await pool.run(bodies.pid) == pids[0]
                assert await pool.run(bodies.pid) == pids[0]
        with pytest.raises(ActorGoneError, match="call it within `async with`"):
            await pool.run(bodies.pid)

    assert descendants(os.getpid()) == before


async def test_one_who_is_cancelled_while_it_opens_takes_it_from_nobody() -> None:
    """Cancelling one opener, even the first, does not fail the others."""
    pool = Processes(workers=1)
    before = descendants(os.getpid())

    async def opener(scope: anyio.CancelScope) -> None:
        with scope:
            async with pool:
                raise AssertionError("cancelled before")

    async def give_up(scope: anyio.CancelScope) -> None:
        scope.cancel()

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()
            group.start_soon(opener, scope)
            while descendants(os.getpid()) == before:
                await anyio.sleep(0.01)
            group.start_soon(give_up, scope)
            async with pool:
                assert await pool.run(bodies.add, 1, 2) == 3

    assert descendants(os.getpid()) == before


async def test_all_who_open_it_are_told_that_it_cannot_start() -> None:
    """Each opener gets its own error, and the pool can be opened again afterwards."""
    pool = Processes(workers=1, preload=["no_such_module"])
    errors: list[ActorStartError] = []

    async def opener() -> None:
        with pytest.raises(ActorStartError, match="no_such_module") as caught:
            await pool.__aenter__()
        errors.append(caught.value)

    with anyio.fail_after(WAIT):
        for _ in range(2):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(opener)

    assert len({id(error) for error in errors}) == 6
    assert all(error.is_permanent for error in errors)


async def test_each_event_loop_has_workers_of_its_own(any_start: str) -> None:
    """A pool opened in two threads at once has separate workers; neither waits for the other nor ends with it."""
    pool = Processes(workers=1)
    library = sniffio.current_async_library()
    other_pids: list[int] = []

    async def elsewhere(entered: threading.Event, go_on: threading.Event) -> None:
        async with pool:
            other_pids.append(await pool.run(bodies.pid))
            entered.set()
            await anyio.to_thread.run_sync(go_on.wait)
            other_pids.append(await pool.run(bodies.pid))

    with anyio.fail_after(WAIT):
        other_entered, go_on = threading.Event(), threading.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(
                anyio.to_thread.run_sync, lambda: anyio.run(elsewhere, other_entered, go_on, backend=library)
            )
            await anyio.to_thread.run_sync(other_entered.wait)
            async with pool:
                own_pid = await pool.run(bodies.pid)
                assert {own_pid, other_pids[0]} <= set(pool.pids)
                assert len(pool.pids) <= (2 if any_start == "fork" else 4)
            go_on.set()

    assert other_pids[0] == other_pids[1] != own_pid


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_event_loop_that_ends_without_closing_it_leaves_nothing(backend: str) -> None:
    """A program may be interrupted between opening and leaving; the next event loop gets a new pool."""
    pool = Processes(workers=2)
    before, fds = descendants(os.getpid()), open_fds()

    async def forget() -> None:
        await pool.__aenter__()
        await pool.run(bodies.pid)

    async def use() -> int:
        async with pool:
            return await pool.run(bodies.add, 1, 2)

    anyio.run(forget, backend=backend)
    assert descendants(os.getpid()) == before
    assert anyio.run(use, backend=backend) == 3
    assert open_fds() == fds


def test_an_event_loop_that_is_closed_in_the_middle_of_it_leaves_nothing_to_the_next() -> None:
    """The loop's tasks are never resumed, so their processes and files are released for them."""
    pool = Processes(workers=2)
    before = descendants(os.getpid())

    async def forget() -> None:
        await pool.__aenter__()

    async def use() -> tuple[int, set[int]]:
        async with pool:
            return await pool.run(bodies.add, 1, 2), below_us() - before

    loop = asyncio.new_event_loop()
    loop.run_until_complete(forget())
    loop.close()
    value, helpers = asyncio.run(use())
    assert (value, len(helpers)) == (3, 1)
    assert descendants(os.getpid()) == before
    with warnings.catch_warnings(action="ignore"):  # Python warns that pending tasks were destroyed
        gc.collect()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_ends_the_pool_with_the_program(tmp_path: Path, backend: str) -> None:
    """Ctrl-C ends the program during a call that ignores the signal."""
    command = [sys.executable, "-m", "tests.process._doomed_parent", backend, str(tmp_path), "plain"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as program:
        anyio.run(wait_for_starts, tmp_path, 3)
        below = descendants(program.pid)
        program.send_signal(signal.SIGINT)
        stderr = program.communicate(timeout=WAIT)[1]

    assert program.returncode not in (0, -signal.SIGKILL)
    assert "KeyboardInterrupt" in stderr
    assert not {pid for pid in below if Path(f"/proc/{pid}").exists()}


async def test_calls_are_told_when_no_workers_can_be_had_and_run_when_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a killed zygote cannot be restarted, calls fail until a restart succeeds.

    The blocks of the pool's openers stay open.
    """
    async with open_pool() as pool:
        executable = sys.executable
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        zygote = zygote_of(pool)
        os.kill(zygote, signal.SIGKILL)
        await until(lambda: not pool.pids)
        with pytest.raises(WorkerDiedError, match=r"has no workers, and tries to start some: .*no/such") as caught:
            await pool.run(bodies.add, 1, 2)
        assert (caught.value.ended, caught.value.recurs) == ("unavailable", False)
        monkeypatch.setattr(sys, "executable", executable)
        await until(lambda: pool.pids)
        assert await pool.run(bodies.add, 1, 2) == 3
