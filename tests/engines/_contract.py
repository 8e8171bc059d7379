"""Test suite for engines: results, errors, cancellation, killed workers and reserved workers."""

import contextlib
import logging
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import anyio

from callboard import ActorGoneError, CallPolicy, Engine, EngineError, ToolNode, observe
from callboard.extend import Body
from callboard.testing import calls
from tests.helpers import until

from . import _bodies as bodies


class EngineContract:
    """Suite of tests for an engine. Subclass it in a test module, and implement `engine` and `kill`.

        class TestProcesses(EngineContract):
            def engine(self) -> Processes:
                return Processes(workers=2)

            async def kill(self, engine: Processes, pid: int) -> None:
                os.kill(pid, signal.SIGKILL)

    The tests are async. Run them with anyio's pytest plugin, on each backend that the engine supports.
    """

    patience = 60.0
    """Time limit of each test, in seconds."""
    ends_threads = True
    """True if the engine can end a sync body that ignores cancellation. An engine without processes cannot."""

    def engine(self) -> Engine:
        """Return an engine that is not open yet and can run two functions at once."""
        raise NotImplementedError("say which engine it is: def engine(self): return Processes(workers=2)")

    async def kill(self, engine: Any, pid: int) -> None:
        """Kill the worker that has this process id, without a chance to clean up, as SIGKILL does."""
        raise NotImplementedError("say how a worker is killed: os.kill(pid, signal.SIGKILL)")

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncGenerator[Any]:
        with anyio.fail_after(self.patience):
            async with self.engine() as engine:
                yield engine

    async def test_it_runs_functions_and_gives_back_what_they_return(self) -> None:
        """Run sync and async functions with positional and keyword arguments: the results must be right."""
        async with self._open() as engine:
            assert await engine.run_body(_body(bodies.add, 1)) == 2
            assert await engine.run_body(_body(bodies.add_later, 1, other=2)) == 3

    async def test_it_is_opened_by_several_and_left_in_any_order(self) -> None:
        """Open the engine twice at once: it must stay open until the last exit, and open again later."""
        with anyio.fail_after(self.patience):
            engine = self.engine()
            for _ in range(2):
                await engine.__aenter__()
                await engine.__aenter__()
                await engine.__aexit__(None, None, None)
                assert await engine.run_body(_body(bodies.add, 1)) == 2
                await engine.__aexit__(None, None, None)

    async def test_whoever_has_not_opened_it_is_told(self) -> None:
        """Run a function on a closed engine: the error must say that the function did not begin."""
        with anyio.fail_after(self.patience):
            error = await _error_of(self.engine(), _body(bodies.add, 1))
        assert isinstance(error, (EngineError, ActorGoneError))
        assert error.ended == "unavailable"

    async def test_errors_come_back_as_themselves(self) -> None:
        """Raise an error in a worker: the caller must get the same type and text, and the next function must run."""
        async with self._open() as engine:
            error = await _error_of(engine, _body(bodies.fail, "no such page"))
            assert isinstance(error, ValueError)
            assert str(error) == "no such page"
            assert await engine.run_body(_body(bodies.add, 1)) == 2

    async def test_what_cannot_cross_is_a_type_error(self) -> None:
        """Run a closure over a lock, and a function with a lock as argument: both must fail with a TypeError."""
        lock = threading.Lock()

        def nameless() -> object:
            return lock

        async with self._open() as engine:
            engine.check(bodies.add, title="add")
            assert "nameless" in _refusal_of(engine, nameless)
            assert isinstance(await _error_of(engine, _body(bodies.add, lock)), TypeError)
            assert await engine.run_body(_body(bodies.add, 1)) == 2

    async def test_a_result_that_cannot_cross_has_finished(self) -> None:
        """Return a lock, which cannot be sent: the error must say that the function has finished."""
        async with self._open() as engine:
            error = await _error_of(engine, _body(bodies.unsendable))
        assert isinstance(error, EngineError)
        assert error.ended == "finished"

    async def test_more_than_it_has_room_for_wait_for_their_turn(self) -> None:
        """Run more functions than workers: all must finish, and `on_begin` must be called once for each."""
        begun: list[int] = []
        results: list[int] = []
        async with self._open() as engine, anyio.create_task_group() as group:

            async def run(number: int) -> None:
                body = _body(bodies.add_later, number, 0, on_begin=lambda: begun.append(number))
                results.append(await engine.run_body(body))

            for number in range(20):
                group.start_soon(run, number)
        assert sorted(results) == sorted(begun) == list(range(20))

    async def test_a_body_whose_begin_fails_leaves_its_place_to_the_next(self) -> None:
        """Let `on_begin` fail, as an observer may: the error must reach the caller, and the next body must run."""

        def fail() -> None:
            raise ValueError("nobody wants it to begin")

        async with self._open() as engine:
            for _ in range(3):
                assert isinstance(await _error_of(engine, _body(bodies.add_later, 1, 0, on_begin=fail)), ValueError)
            with anyio.fail_after(30):
                assert await engine.run_body(_body(bodies.add, 1)) == 2

    async def test_deadline_progress_and_log_cross(self, caplog: Any) -> None:
        """Read the deadline, report progress and log in a worker: all must work as in the caller's process."""
        events: list[Any] = []
        with caplog.at_level(logging.WARNING), observe(events.append):
            async with self._open() as engine:
                policy = CallPolicy(timeout=20.0, runs_in=engine)
                node = ToolNode([bodies.tell], policies={"tell": policy})
                [message] = await node.ainvoke([calls("tell")])
        assert 0 < float(message.content) <= 20
        progress = [(record.message, dict(record.facts)) for record in events if record.note == "progress"]
        assert progress == [("half", {"done": 1, "total": 2})]
        assert [record.getMessage() for record in caplog.records if record.name == "callboard.testing.engine"] == [
            "from elsewhere"
        ]

    async def test_a_cancelled_body_is_gone_when_its_caller_goes_on(self) -> None:
        """Cancel an async function, and a sync one that ignores cancellation: both must end before `run_body` does."""
        for fn in (bodies.goes_on, bodies.goes_on_in_a_thread) if self.ends_threads else (bodies.goes_on,):
            async with self._open() as engine, _file() as path:
                async with anyio.create_task_group() as group:
                    group.start_soon(engine.run_body, _body(fn, path, grace=0.2))
                    await until(lambda path=path: len(_text(path)) > 2)  # type: ignore[misc]
                    group.cancel_scope.cancel()
                written = _text(path)
                await anyio.sleep(0.1)  # 20 times the pause of the body: a body that still runs would have written
                assert _text(path) == written
                assert await engine.run_body(_body(bodies.add, 1)) == 2

    async def test_a_body_whose_worker_is_killed_is_unknown_and_its_neighbour_goes_on(self) -> None:
        """Kill a worker: its function's outcome must be unknown, other functions go on, and a new worker starts."""
        async with self._open() as engine, _file() as path, anyio.create_task_group() as group:
            errors: list[BaseException] = []
            sums: list[int] = []

            async def run_doomed() -> None:
                errors.append(await _error_of(engine, _body(bodies.goes_on, path)))

            async def neighbour() -> None:
                while not errors:
                    sums.append(await engine.run_body(_body(bodies.add_later, 1)))

            group.start_soon(run_doomed)
            group.start_soon(neighbour)
            await until(lambda: bool(sums) and len(_text(path).splitlines()) == 2)
            await self.kill(engine, int(_text(path).splitlines()[0]))
            await until(lambda: bool(errors))
            assert isinstance(errors[0], EngineError)
            assert errors[0].ended == "unknown"
            for _ in range(4):
                assert await engine.run_body(_body(bodies.add, 1)) == 2

    async def test_a_seat_keeps_what_is_kept_there_and_runs_several_at_once(self) -> None:
        """Reserve a worker: its state must last between functions, and several functions must run at once."""
        async with self._open() as engine, _file() as path:
            async with engine.seat("owner") as seat:
                await seat.run_body(_body(bodies.forget))
                assert await seat.run_body(_body(bodies.keep, 1)) == [1]
                assert await seat.run_body(_body(bodies.keep, 2)) == [1, 2]
                async with anyio.create_task_group() as group:
                    for _ in range(3):
                        group.start_soon(seat.run_body, _body(bodies.meet, path, 3))
            assert await engine.run_body(_body(bodies.add, 1)) == 2

    async def test_a_cancelled_body_in_a_seat_leaves_the_others_alone(self) -> None:
        """Cancel one function in a reserved worker: the state of the worker must not be lost."""
        async with self._open() as engine, _file() as path, engine.seat("owner") as seat:
            await seat.run_body(_body(bodies.forget))
            await seat.run_body(_body(bodies.keep, 1))
            async with anyio.create_task_group() as group:
                group.start_soon(seat.run_body, _body(bodies.goes_on, path, grace=5.0))
                await until(lambda: len(_text(path)) > 2)
                group.cancel_scope.cancel()
            written = _text(path)
            assert await seat.run_body(_body(bodies.keep, 2)) == [1, 2]
            assert _text(path) == written

    async def test_a_seat_whose_worker_is_killed_says_so(self) -> None:
        """Kill a reserved worker: waiting and later callers must get an error, and `until_ended` must return."""
        async with self._open() as engine, _file() as path, engine.seat("owner") as seat:
            ends: list[Any] = []

            async def run_doomed() -> None:
                ends.append(await _error_of(seat, _body(bodies.goes_on, path)))

            async def watch() -> None:
                ends.append(await seat.until_ended())

            async with anyio.create_task_group() as group:
                group.start_soon(run_doomed)
                group.start_soon(watch)
                await until(lambda: len(_text(path)) > 2)
                await self.kill(engine, await seat.run_body(_body(bodies.where)))
            [error] = [end for end in ends if isinstance(end, EngineError)]
            assert error.ended == "unknown"
            assert [end for end in ends if isinstance(end, str) and end]
            later = await _error_of(seat, _body(bodies.where))
            assert isinstance(later, EngineError)
            assert later.ended == "unavailable"


def _body(fn: Callable[..., Any], *args: Any, grace: float | None = None, on_begin: Any = None, **kwargs: Any) -> Body:
    return Body(fn=fn, args=args, kwargs=kwargs, title=fn.__name__, grace=grace, on_begin=on_begin)


async def _error_of(runs: Any, body: Body) -> Exception:
    try:
        await runs.run_body(body)
    except Exception as error:
        return error
    raise AssertionError(f"{body.title} has raised nothing")


@contextlib.asynccontextmanager
async def _file() -> AsyncGenerator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "written"
        path.touch()
        yield str(path)


def _refusal_of(engine: Engine, fn: Callable[..., Any]) -> str:
    try:
        engine.check(fn, title="nameless")
    except TypeError as error:
        return str(error)
    return ""


def _text(path: str) -> str:
    return Path(path).read_text()
