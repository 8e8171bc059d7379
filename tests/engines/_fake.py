"""Fake engine for tests: it runs functions in this process, and simulates killed workers."""

import json
import pickle
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, copy_context
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Self

import anyio
from anyio.to_thread import run_sync

from callboard import Drained, EngineError
from callboard.extend import Body, EngineOperations, Seat, attach_context, dispatch_event, inject_context


class FakeEngine:
    """Engine that runs functions in this process as if in a worker: functions, arguments and results are pickled.

    `kill` ends the running functions as a killed worker would, with an unknown outcome. `bodies` lists the titles of
    all functions that began.
    """

    def __init__(self) -> None:
        self.bodies: list[str] = []
        """Titles of the functions that began, in order."""
        self.opened = 0
        """Number of `async with` blocks that have the engine open now."""
        self.starts = 0
        """Number of times that the engine changed from closed to open."""
        self.seats = 0
        """Number of workers that are reserved now."""
        self._running: set[_Running] = set()
        self._refusals: list[str] = []
        self._in_flight = EngineOperations("engine")

    async def __aenter__(self) -> Self:
        if not self.opened:
            self.starts += 1
            self._in_flight.reopen()
        self.opened += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.opened -= 1

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Raise `TypeError` if a function cannot be pickled; `title` names the function in the error."""
        _to_bytes(fn, f"{title!r} cannot run elsewhere")

    def refuse(self, reason: str) -> None:
        """Refuse to run the next function: `run_body` raises `EngineError` with this reason."""
        self._refusals.append(reason)

    def kill(
        self, reason: str = "its worker was killed by SIGKILL", *, title: str | None = None, recurs: bool = False
    ) -> None:
        """Kill the running functions and the reserved workers, as SIGKILL would.

        `title` restricts the kill to workers that run a function with this title; `recurs` says that the function has
        killed its worker.
        """
        for execution in [execution for execution in self._running if title is None or title in execution.titles]:
            execution.recurs = recurs
            execution.lose(reason)

    async def run_body(self, body: Body, /) -> Any:
        """Run a function in this process, and return its result; see `callboard.Engine`."""
        with self._in_flight.running(body, grace=0.0) as noted:
            return await self._run_within(noted, self._running)

    async def drain(self, timeout: float = 30.0) -> Drained:
        """Refuse to run new functions, wait for running functions, and end them after `timeout` seconds."""
        return await self._in_flight.drain(timeout)

    async def _run_within(self, body: Body, worker: "set[_Running]") -> Any:
        """Run a function in a worker, also while the engine is drained, and return its result."""
        if not self.opened:
            raise EngineError(body.title, body.call_id, "its engine is not open", ended="unavailable")
        if self._refusals:
            raise EngineError(body.title, body.call_id, self._refusals.pop(0), ended="unavailable")
        with _lose_with(body, worker):
            return await self._run(body)
        raise AssertionError("it returns, or raises")

    async def _run(self, body: Body) -> Any:
        call = pickle.loads(_to_bytes((body.fn, body.args, body.kwargs), f"{body.title!r}: its arguments"))
        self.bodies.append(body.title)
        if body.on_begin is not None:
            body.on_begin()
        result = await _as_elsewhere(partial(call[0], *call[1], **call[2]), iscoroutinefunction(call[0]))
        try:
            return pickle.loads(pickle.dumps(result))
        except Exception as error:
            raise EngineError(body.title, body.call_id, f"it cannot be pickled: {error}", ended="finished") from error

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[Seat]:
        """Reserve a worker for one owner during the `async with` block; see `callboard.Engine`."""
        self._in_flight.check_open(title)
        seat = _FakeSeat(self._run_within)
        self.seats += 1
        self._running.add(seat)
        try:
            yield seat
        finally:
            self._running.discard(seat)
            self.seats -= 1


class _Running:
    """Running function, or reserved worker, of a `FakeEngine`; `lose` ends it as a kill would."""

    def __init__(self, title: str = "") -> None:
        self.scope = anyio.CancelScope()
        self.reason: str | None = None
        self.recurs = False
        self._title = title

    @property
    def titles(self) -> Collection[str]:
        """Titles of the functions that end if this worker is killed."""
        return [self._title]

    def lose(self, reason: str) -> None:
        self.reason = reason
        self.scope.cancel()


class _FakeSeat(_Running):
    """Fake worker that is reserved for one owner, with the functions that run in it."""

    def __init__(self, run: "Callable[[Body, set[_Running]], Awaitable[Any]]") -> None:
        super().__init__()
        self._run = run
        self._bodies: set[_Running] = set()
        self._ended = anyio.Event()

    @property
    def titles(self) -> Collection[str]:
        return [title for body in self._bodies for title in body.titles]

    def lose(self, reason: str) -> None:
        self.reason = reason
        for body in self._bodies:
            body.recurs = self.recurs
            body.lose(reason)
        self._ended.set()

    async def run_body(self, body: Body, /) -> Any:
        if self.reason is not None:
            raise EngineError(body.title, body.call_id, self.reason, ended="unavailable")
        return await self._run(body, self._bodies)

    async def until_ended(self) -> str:
        await self._ended.wait()
        assert self.reason is not None
        return self.reason


@contextmanager
def _lose_with(body: Body, worker: set[_Running]) -> Generator[None]:
    running = _Running(body.title)
    worker.add(running)
    try:
        with running.scope:
            yield
    finally:
        worker.discard(running)
    # Outside the scope, which swallowed the cancellation: a kill is an error for the caller, not a cancellation.
    if running.reason is not None:
        raise EngineError(body.title, body.call_id, running.reason, ended="unknown", recurs=running.recurs)


async def _as_elsewhere(fn: Callable[[], Any], is_async: bool) -> Any:
    """Run a function in an empty `contextvars` context with only the data that an engine would send to a worker."""
    # Through JSON and back, as over a pipe: a value that JSON cannot carry fails here, too.
    context, carrier = copy_context(), json.loads(json.dumps(inject_context()))
    results, errors = list[Any](), list[Exception]()

    def tell(message: dict[str, Any]) -> None:
        if "log" not in message:  # the log record was written in this process already
            context.copy().run(dispatch_event, json.loads(json.dumps(message)))

    async def run() -> None:
        with attach_context(carrier, tell):
            try:
                results.append(await fn() if is_async else await run_sync(fn, abandon_on_cancel=True))
            except Exception as error:
                errors.append(error)

    async with anyio.create_task_group() as group:
        Context().run(group.start_soon, run)
    if errors:
        raise errors.pop()
    return results[0]


def _to_bytes(value: object, subject: str) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(f"{subject} cannot be pickled: {error}") from error
