"""Calls with unusual ends: cancelled before they began, interrupted from outside, or with results hard to send."""

import errno
import logging
import os
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard_actors.process import ResultLostError, WorkerDiedError

from . import _bodies as bodies
from . import _odd_bodies as odd
from ._processes import body_of, open_pool, wait_for_starts

pytestmark = [pytest.mark.real_clock, pytest.mark.usefixtures("any_start")]


async def test_a_call_of_a_seat_that_is_cancelled_before_it_runs_leaves_the_seat_alive(tmp_path: Path) -> None:
    """A busy session reads the call and its cancellation together; it replies without running the call."""
    folder, go, mark = tmp_path / "here", tmp_path / "go", tmp_path / "mark"
    folder.mkdir()
    results: list[str] = []

    async def busy(seat: Any) -> None:
        results.append(await seat.run_body(body_of(odd.block_until, str(folder), str(go))))

    async with open_pool(grace=5.0) as pool, pool.seat("owner") as seat:
        async with anyio.create_task_group() as outer:
            outer.start_soon(busy, seat)
            await wait_for_starts(folder)
            async with anyio.create_task_group() as inner:
                inner.start_soon(seat.run_body, body_of(odd.leave_a_mark, str(mark)))
                await anyio.wait_all_tasks_blocked()  # the call has been sent
                inner.cancel_scope.cancel()
                outer.start_soon(_touch_when_all_wait, go)
        assert (await seat.run_body(body_of(bodies.add_later, 1, 2)))[0] == 3

    assert results == ["went on"]
    assert not mark.exists()


async def _touch_when_all_wait(path: Path) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.wait_all_tasks_blocked()
    path.touch()


async def test_a_call_of_a_seat_that_nobody_cancelled_is_unknown_when_its_process_is_interrupted() -> None:
    """SIGINT cancels all calls in the session; none has finished and none may be reported as finished."""
    async with open_pool() as pool, pool.seat("owner") as seat:
        with pytest.raises(WorkerDiedError, match="exited with code 1") as caught:
            await seat.run_body(body_of(odd.interrupt_oneself))

    assert caught.value.ended == "unknown"


async def test_a_body_that_raises_that_a_worker_died_is_run_once(tmp_path: Path) -> None:
    """The error comes from a pool that the function itself opened.

    Its own worker lives, and the call had its effect.
    """
    runs = tmp_path / "runs"
    async with open_pool() as pool:
        before = pool.pids
        with pytest.raises(WorkerDiedError, match="'inner' was not started"):
            await pool.run(odd.lose_an_inner_worker, str(runs))
        assert await pool.run(bodies.pid) == before[0]

    assert runs.read_text() == "x"


async def _error_of(fn: Callable[..., Any], *args: Any) -> Exception:
    async with open_pool() as pool:
        with pytest.raises(Exception) as caught:
            await pool.run(fn, *args)
    return caught.value


def _notes(error: BaseException) -> str:
    return "\n".join(error.__notes__)


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize(
    ("fn", "args", "kind", "shows", "note"),
    [
        # Exceptions of httpx and openai take more than their text; code that retries by class must recognise them.
        (odd.raise_status, ("nothing",), odd.StatusError, {"status": 503, "held": None}, "in raise_status"),
        (odd.raise_status, ("a lock",), odd.StatusError, {"status": 503}, "cannot be pickled: held"),
        # An exception within itself is not sent again.
        (odd.raise_itself_again, (), odd.StatusError, {"status": 503}, "cannot be pickled: held"),
        # The errno and filename of an OSError are not in its `__dict__`.
        (odd.raise_place, (), odd.PlaceError, {"errno": errno.ENOENT, "filename": "/nowhere", "place": "/nowhere"}, ""),
        # If `__reduce__` gives another object, the exception is sent without it.
        (odd.raise_pretender, (), odd.PretenderError, {"args": ("indeed",)}, ""),
    ],
)
async def test_an_exception_that_python_cannot_unpickle_arrives_as_itself(
    fn: Callable[..., Any], args: tuple[object, ...], kind: type[Exception], shows: dict[str, object], note: str
) -> None:
    """Its attributes arrive, too; a note names those that cannot be sent."""
    error = await _error_of(fn, *args)
    assert type(error) is kind
    assert {name: getattr(error, name) for name in shows} == shows
    assert note in _notes(error)
    assert "cannot be pickled" not in note or not hasattr(error, "held")


async def test_what_such_an_exception_holds_arrives_if_it_can_be_sent() -> None:
    """Exceptions stored in an attribute arrive, too, even if they are of the same class."""
    error = await _error_of(odd.raise_status, "an error")
    assert isinstance(error, odd.StatusError)
    assert isinstance(error.held, odd.StatusError)
    assert (str(error.held), error.held.status) == ("inner", 500)


async def test_an_argument_that_cannot_be_sent_arrives_as_its_text() -> None:
    """Positions in `args` are kept, because other arguments depend on them."""
    error = await _error_of(odd.raise_with_a_lock)
    assert type(error) is RuntimeError
    assert error.args[0] == "held"
    assert "_thread.lock" in error.args[1]
    assert "cannot be pickled: args[1]" in _notes(error)


async def test_exceptions_within_groups_arrive_however_deep_they_are() -> None:
    """The time to send nested groups does not double with each level."""
    error = await _error_of(odd.raise_in_groups, 30)
    assert isinstance(error, ExceptionGroup)
    leaf = error.subgroup(odd.StatusError)
    while isinstance(leaf, ExceptionGroup):
        leaf = leaf.exceptions[-1]
    assert isinstance(leaf, odd.StatusError)
    assert leaf.status == 503


async def test_only_notes_show_the_traceback_of_an_exception_that_is_lost() -> None:
    """The text of an exception is shown to models; tracebacks are only for developers, in notes."""
    error = await _error_of(odd.raise_what_nobody_finds)
    assert isinstance(error, ResultLostError)
    assert r"LocalError(local\0text), which cannot be pickled" in str(error)
    assert "Traceback" not in str(error)
    assert "in raise_what_nobody_finds" in _notes(error)


def _refuse(record: logging.LogRecord) -> bool:
    if record.name == "odd":
        raise ValueError("no such line")
    return True


@pytest.fixture
def _refusing() -> Generator[None]:
    logger = logging.getLogger("odd")
    logger.addFilter(_refuse)
    yield
    logger.removeFilter(_refuse)


@pytest.mark.usefixtures("_refusing")
async def test_what_a_log_filter_raises_is_no_fault_of_the_worker() -> None:
    """A log filter raises in the caller, as it would for a local log line; the session stays usable."""
    async with open_pool() as pool, pool.seat("owner") as seat:
        with pytest.raises(ValueError, match="no such line"):
            await seat.run_body(body_of(odd.log_there, "line"))
        assert (await seat.run_body(body_of(bodies.add_later, 1, 2)))[0] == 3
        with pytest.raises(ValueError, match="no such line"):
            await pool.run(odd.log_there, "line")


async def test_a_seat_whose_block_has_ended_reads_no_files_of_others(tmp_path: Path) -> None:
    """After the block, the session's descriptor numbers may belong to other files; its output was read before."""
    other_file = tmp_path / "other"
    other_file.write_text("somebody else's")
    async with open_pool() as pool:
        async with pool.seat("owner") as seat:
            await seat.run_body(body_of(odd.print_there, "last words"))
        with ExitStack() as stack:
            files = [stack.enter_context(other_file.open()) for _ in range(16)]
            with pytest.raises(WorkerDiedError) as caught:
                await seat.run_body(body_of(odd.print_there, "too late"))
            assert [os.lseek(file.fileno(), 0, os.SEEK_CUR) for file in files] == [0] * 16

    assert caught.value.ended == "unavailable"
    assert caught.value.output == "last words\n"


async def test_a_body_that_leaves_no_stdout_has_returned_all_the_same() -> None:
    """The call had its effect and its result is known, although the worker cannot write its output.

    A session holds its actor's state, so closing stdout must not end it.
    """
    async with open_pool() as pool, pool.seat("owner") as seat:
        assert [await pool.run(odd.close_stdout), await pool.run(odd.take_stdout_away)] == ["closed", "taken"]
        assert await pool.run(bodies.add, 1, 2) == 3
        assert await seat.run_body(body_of(odd.close_stdout_there)) == "closed"
        assert (await seat.run_body(body_of(bodies.add_later, 1, 2)))[0] == 3
