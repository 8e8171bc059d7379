"""Worker sessions: one worker reserved for one owner, its concurrent async functions, and how it ends."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.extend import Body, EngineError
from callboard_actors._engine import _kernel
from callboard_actors._engine._frames import HEADER, MAGIC, Kind
from callboard_actors.process import WorkerDiedError

from . import _bodies as bodies
from . import _precise
from ._processes import alive, body_of, descendants, only_workers_beside, open_fds, open_pool, wait_for_starts

pytestmark = [pytest.mark.real_clock, pytest.mark.usefixtures("any_start")]


async def test_a_seat_is_no_worker_of_the_pool_and_ends_with_its_block() -> None:
    """A session takes no worker from the pool and leaves neither a process nor a file."""
    async with open_pool() as pool:
        workers = pool.pids
        before, fds = descendants(os.getpid()), open_fds()
        for _ in range(3):
            async with pool.seat("owner") as seat:
                result = await seat.run_body(body_of(bodies.add_later, 1, 2))
                assert result[0] == 3
                if _kernel.FORKS:  # else the spare interpreter has become the dedicated worker
                    assert len(descendants(os.getpid())) == len(before) + 1
                    assert pool.pids == workers
            await only_workers_beside(pool, before - set(workers))
        assert open_fds() == fds


async def test_context_variables_that_a_preloaded_module_has_set_are_there() -> None:
    """The same function has to calculate the same in a dedicated worker as in a worker of the pool."""
    async with open_pool(preload=[_precise.__name__]) as pool, pool.seat("owner") as seat:
        assert await pool.run(_precise.precision) == 50
        assert await seat.run_body(body_of(_precise.precision)) == 50


@pytest.mark.backends("asyncio", "trio")
async def test_a_cancelled_function_cleans_up_and_is_waited_for(tmp_path: Path) -> None:
    """The session holds the actor's state, so a cancelled function must not end it."""
    async with open_pool() as pool, pool.seat("owner") as seat:
        async with anyio.create_task_group() as group:
            group.start_soon(seat.run_body, body_of(bodies.clean_up_slowly, str(tmp_path)))
            await wait_for_starts(tmp_path)
            group.cancel_scope.cancel()
        assert (tmp_path / "0").exists()
        assert (await seat.run_body(body_of(bodies.add_later, 1, 2)))[0] == 3


async def test_one_that_does_not_end_within_its_grace_ends_the_seat(tmp_path: Path) -> None:
    """Other calls in the session get an error that their outcome is unknown; the pool goes on."""
    errors: list[WorkerDiedError] = []

    async def neighbour(seat: Any, folder: Path) -> None:
        with pytest.raises(WorkerDiedError, match="did not end within its grace") as caught:
            await seat.run_body(body_of(bodies.wait_there, str(folder)))
        errors.append(caught.value)

    busy_folder, neighbour_folder = tmp_path / "here", tmp_path / "there"
    busy_folder.mkdir()
    neighbour_folder.mkdir()
    async with open_pool() as pool, pool.seat("owner") as seat:
        async with anyio.create_task_group() as outer:
            outer.start_soon(neighbour, seat, neighbour_folder)
            await wait_for_starts(neighbour_folder)
            async with anyio.create_task_group() as group:
                group.start_soon(seat.run_body, body_of(bodies.block_the_loop, str(busy_folder), grace=0.2))
                busy = await wait_for_starts(busy_folder)
                assert await pool.run(bodies.add, 1, 2) == 3
                group.cancel_scope.cancel()
            assert alive(busy) == set()
        assert "did not end within its grace" in await seat.until_ended()
        with pytest.raises(WorkerDiedError) as late:
            await seat.run_body(body_of(bodies.wait_there, str(neighbour_folder)))

    assert (errors[0].ended, errors[0].recurs, late.value.ended) == ("unknown", False, "unavailable")


@pytest.mark.parametrize(
    ("fn", "args", "reason", "recurs"),
    [
        (bodies.end_there, (), "exited with code 3", True),
        (bodies.send_raw_there, (b"\x00" * 100,), "sent what is no reply", True),
        (bodies.send_raw_there, (HEADER.pack(MAGIC, Kind.VALUE, 99, 0),), "it is for no call", True),
        (bodies.send_raw_there, (HEADER.pack(MAGIC, Kind.EVENT, 1, 2) + b"[]",), "sent what is no reply", True),
    ],
)
async def test_what_ends_a_seat_is_told_to_every_open_call(
    tmp_path: Path, fn: Callable[..., Any], args: tuple[object, ...], reason: str, recurs: bool
) -> None:
    """The reason also reaches the code that watches the session."""
    ends: list[EngineError] = []

    async def call(seat: Any, body: Body) -> None:
        with pytest.raises(WorkerDiedError, match=reason) as caught:
            await seat.run_body(body)
        ends.append(caught.value)

    async with open_pool(grace=0.2) as pool, pool.seat("owner") as seat:
        async with anyio.create_task_group() as group:
            group.start_soon(call, seat, body_of(bodies.wait_there, str(tmp_path)))
            await wait_for_starts(tmp_path)
            group.start_soon(call, seat, body_of(fn, *args))
        assert reason in await seat.until_ended()

    assert [(end.ended, end.recurs) for end in ends] == [("unknown", recurs)] * 2


async def test_a_seat_that_never_stops_talking_holds_up_nobody(tmp_path: Path) -> None:
    """Messages of a session are bounded; its owner and the pool continue, and the session can be ended."""
    async with open_pool(grace=0.2) as pool, pool.seat("owner") as seat:
        async with anyio.create_task_group() as group:
            group.start_soon(seat.run_body, body_of(bodies.flood_there, str(tmp_path)))
            await wait_for_starts(tmp_path)
            for number in range(20):
                assert await pool.run(bodies.add, number, 1) == number + 1
            group.cancel_scope.cancel()


async def test_a_call_whose_begin_fails_leaves_nothing_in_its_seat() -> None:
    """A call that stayed registered would keep its arguments and its late reply for as long as the session lives."""

    def fail() -> None:
        raise ValueError("nobody wants it to begin")

    async with open_pool() as pool, pool.seat("owner") as seat:
        untyped_seat: Any = seat
        with pytest.raises(ValueError, match="nobody wants it to begin"):
            await seat.run_body(replace(body_of(bodies.add_later, 1, 2), on_begin=fail))
        assert not untyped_seat._calls
        assert (await seat.run_body(body_of(bodies.add_later, 1, 2)))[0] == 3
