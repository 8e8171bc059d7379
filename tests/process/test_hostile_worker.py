"""A hostile worker causes an error of its own call and nothing else."""

import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.extend import Body
from callboard_actors.process import Processes, ResultLostError, WorkerDiedError
from tests.helpers import until

from . import _bodies as bodies
from . import _hostile as hostile
from ._processes import confine_here, open_pool

pytestmark = pytest.mark.real_clock

GRACE = 0.2
MOST = 1024 * 1024
"""Maximum size of a result in bytes."""
GIGABYTE = 1024**3


@asynccontextmanager
async def besiege_pool(**confine: Any) -> AsyncIterator[Processes]:
    """Open a pool whose second worker keeps answering calls; check at the end that the pool has all its workers."""
    async with open_pool(workers=2, grace=GRACE, max_result=MOST, confine=confine_here(**confine)) as pool:
        answered: list[int] = []

        async def neighbour() -> None:
            while True:
                answered.append(await pool.run(bodies.add, 1, 2))

        before = _memory()
        async with anyio.create_task_group() as group:
            group.start_soon(neighbour)
            yield pool
            group.cancel_scope.cancel()
        await until(lambda: len(pool.pids) >= 2, GRACE + 2)
        assert await pool.run(bodies.add, 1, 2) == 3
        assert set(answered) <= {3}
        assert _memory() - before < 64 * 1024


def _memory() -> int:
    """Return the peak memory of this process in KB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@asynccontextmanager
async def alone(**confine: Any) -> AsyncIterator[Processes]:
    """Open a pool of one worker, in which calls are numbered from 1."""
    async with open_pool(grace=GRACE, max_result=MOST, confine=confine_here(**confine)) as pool:
        yield pool
        assert await pool.run(bodies.add, 1, 2) == 3


@pytest.mark.parametrize("kind", ["VALUE", "RAISED"])
async def test_a_pickle_as_a_reply_is_never_loaded(tmp_path: Path, kind: str) -> None:
    """Unpickling would run the worker's code with our permissions; pools that trust their workers do it."""
    trusting, confined = str(tmp_path / "trusting"), str(tmp_path / "confined")
    async with open_pool(grace=GRACE) as pool:
        if kind == "VALUE":
            await pool.run(hostile.send_bomb, kind, 1, trusting)
        else:
            with pytest.raises(ResultLostError):
                await pool.run(hostile.send_bomb, kind, 1, trusting)
    assert Path(trusting).exists()
    async with alone() as pool:
        with pytest.raises(ResultLostError, match="it cannot be read here"):
            await pool.run(hostile.send_bomb, kind, 1, confined)

    assert not Path(confined).exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00" * 100, "begins no frame"),
        (b"cb", None),
        (hostile.frame("VALUE", 999, b"1"), "it is for another call"),
        (hostile.frame("CALL", 1, b"1"), "it is for another call"),
        (hostile.frame("CANCEL", 1, b"1"), "it is for another call"),
        (hostile.frame(77, 1, b"1"), "begins no frame"),
        (hostile.frame("VALUE", 1, b"1") + b"more", "something follows it"),
        (hostile.frame("VALUE", 1, b"1") * 2, "something follows it"),
        (hostile.frame("VALUE", 1, b"", 2**60), "and max_result is"),
        (hostile.frame("VALUE", 1, b"1", 1000), None),
    ],
)
async def test_what_is_no_reply_ends_the_worker_and_its_call(data: bytes, reason: str | None) -> None:
    """An invalid reply ends the worker and fails the call; half of a reply ends with the timeout of the call."""
    async with alone() as pool:
        if reason is None:
            with anyio.move_on_after(0.3) as scope:
                await pool.run(hostile.send, data)
            assert scope.cancelled_caught
        else:
            with pytest.raises(WorkerDiedError, match=reason) as caught:
                await pool.run(hostile.send, data)
            assert caught.value.recurs


@pytest.mark.parametrize("reuse", [False, True])
async def test_a_reply_before_it_is_asked_for_is_nobodys(reuse: bool) -> None:
    """A reply that the current call sends for the next one is ignored."""
    async with alone(reuse=reuse) as pool:
        with pytest.raises(WorkerDiedError, match="it is for another call"):
            await pool.run(hostile.send_and_return, hostile.frame("VALUE", 2, b"1"))
        assert await pool.run(bodies.add, 1, 2) == 3


async def test_a_call_that_is_answered_twice_has_one_answer() -> None:
    """The caller gets the first reply; the second one reaches no call, whenever it arrives."""
    async with alone() as pool:
        with suppress(WorkerDiedError):
            await pool.run(hostile.send_and_return, hostile.frame("VALUE", 1, b'"forged"'))
        for _ in range(3):
            assert await pool.run(bodies.add, 1, 2) == 3


async def test_what_a_call_leaves_behind_answers_for_nobody() -> None:
    """A thread that outlives its call knows the right call numbers, so the worker is ended with the call."""
    async with alone() as pool:
        with suppress(WorkerDiedError):  # on a busy machine, the thread may send before its call's reply is read
            assert await pool.run(hostile.answer_for_others, 2, 50) == "returned"
        for _ in range(20):
            assert await pool.run(bodies.add, 1, 2) == 3


async def test_a_worker_that_will_not_go_is_replaced_at_once() -> None:
    """A confined worker has no grace period after its call."""
    async with open_pool(grace=10, confine=confine_here()) as pool:
        began = time.monotonic()
        assert await pool.run(hostile.stay, 600) == "returned"
        assert await pool.run(bodies.add, 1, 2) == 3
        assert time.monotonic() - began < 5


async def test_a_call_that_denies_to_have_begun_is_not_run_again(tmp_path: Path) -> None:
    """A pool that trusts its workers would run the call again; a confined worker may have erased its begun counter."""
    trusting, confined = tmp_path / "trusting", tmp_path / "confined"
    async with open_pool(grace=GRACE) as pool:
        with pytest.raises(WorkerDiedError, match="was not started"):
            await pool.run(hostile.deny_to_have_begun, str(trusting))
    assert len(trusting.read_text().splitlines()) > 1
    # A worker that is used again keeps its begun counter writable for the next call.
    for reuse in (False, True):
        confined.write_text("")
        async with alone(write=[tmp_path], reuse=reuse) as pool:
            with pytest.raises(WorkerDiedError, match="had begun") as caught:
                await pool.run(hostile.deny_to_have_begun, str(confined))
        assert (caught.value.ended, caught.value.recurs) == ("unknown", True)
        assert len(confined.read_text().splitlines()) == 1


async def test_a_seat_that_denies_to_have_begun_is_not_believed(tmp_path: Path) -> None:
    """A confined session cannot prove that a call had not begun, so the outcome is unknown, without a retry."""
    trace = tmp_path / "trace"
    body = Body(fn=hostile.deny_to_have_begun, args=(str(trace),), title="deny")
    async with alone(write=[tmp_path]) as pool, pool.seat("owner") as seat:
        with pytest.raises(WorkerDiedError) as caught:
            await seat.run_body(body)

    assert (caught.value.ended, caught.value.recurs) == ("unknown", True)
    assert len(trace.read_text().splitlines()) == 1


async def test_a_call_that_was_never_sent_to_a_confined_seat_had_not_begun() -> None:
    """The session ended before the call was sent, so another session may run it."""
    async with alone() as pool, pool.seat("owner") as seat:
        with pytest.raises(WorkerDiedError):
            await seat.run_body(Body(fn=bodies.end_at_once, args=(0,), title="exit"))
        with pytest.raises(WorkerDiedError) as caught:
            await seat.run_body(Body(fn=bodies.add, args=(1, 2), title="add"))

    assert caught.value.ended == "unavailable"


async def test_the_notebook_of_a_worker_holds_one_number() -> None:
    """The file of the begun counter is memory that no limit counts, so it holds one number only."""
    async with alone(reuse=True) as pool:
        with pytest.raises(PermissionError):
            await pool.run(hostile.grow_notebook)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("body", "args"),
    [
        (hostile.flood_socket, (b"", GIGABYTE)),
        (hostile.flood_socket, (hostile.frame("VALUE", 1, b"", MOST), GIGABYTE)),
        (hostile.flood_words, (1, 30_000)),
    ],
)
async def test_a_gigabyte_over_the_socket_is_read_no_further_than_a_reply_may_go(
    body: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """The parent's memory stays bounded, and other workers keep their share of its time."""
    async with besiege_pool() as pool:
        with pytest.raises((WorkerDiedError, ResultLostError)):
            await pool.run(body, *args)


@pytest.mark.exhaustive
async def test_a_gigabyte_of_output_is_taken_and_not_kept() -> None:
    """Only the last part of the output is kept, for errors."""
    async with besiege_pool() as pool:
        assert await pool.run(hostile.flood_output, GIGABYTE) == "returned"
