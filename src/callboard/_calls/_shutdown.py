"""Draining of agents, nodes, actors and engines on SIGTERM or Ctrl-C."""

import logging
import math
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import chain
from types import FrameType
from typing import Any, Protocol

from anyio import Event, create_task_group

from callboard._calls._blocks import has_to_be_entered_async
from callboard._calls._draining import PATIENCE
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import Scope, Spawned
from callboard._records._policies import check_duration, has_members_of
from callboard._records._reports import Drained
from callboard._util._errors import raise_first

_log = logging.getLogger("callboard")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CanDrain(Protocol):
    """Object that can be drained: agent, node, supervisor or engine."""

    async def drain(self, timeout: float = ..., /) -> Drained:
        """Refuse new work, wait up to `timeout` seconds for running work, cancel the rest, and report the outcome."""
        ...


class Shutdown:
    """Ordered shutdown of a process or application; yielded by `drain_on_signal`.

    Args:
        stages: objects to drain: the stages one after the other, the objects of a stage at the same time.
        timeout: seconds for all stages together.
    """

    def __init__(self, stages: Sequence[Sequence[CanDrain]], timeout: float) -> None:
        self.report = Drained()
        """Outcome of the drained work; complete after the `drain_on_signal` block."""
        self._stages = stages
        self._timeout = timeout
        self._loop = current_loop()
        self._begun, self._done = Event(), Event()
        self._deadline = math.inf
        self._current_stage: Sequence[CanDrain] = ()
        self._urgent_drains: list[Spawned] = []
        self._errors: list[Exception] = []

    @property
    def has_begun(self) -> bool:
        """True when the shutdown has started, by a signal or at the end of the `drain_on_signal` block."""
        return self._begun.is_set()

    @property
    def exit_code(self) -> int:
        """Exit code to use after `drain_on_signal`: 0 if all work finished, 4 if an outcome is unknown, otherwise 3."""
        return self.report.exit_code

    def begin(self) -> None:
        """Start the shutdown now, without a signal; call this only in the event loop's thread."""
        if not self.has_begun:
            # Set once, at the start: a stage that takes long leaves less time for the next one.
            self._deadline = self._loop.now() + self._timeout
            self._begun.set()

    def handle_signal(self) -> None:
        """Handle a signal: start the shutdown; at the second signal, cancel running work at once."""
        if self.has_begun:
            self._cancel_running_work()
        self.begin()

    def _cancel_running_work(self) -> None:
        self._deadline = self._loop.now()  # stages that have not begun get no time either
        # A second drain with a timeout of 0 cancels the work that the first drain waits for. The first one reports it.
        self._urgent_drains += [
            self._loop.spawn(partial(self._end, drainable), DEFAULT_GRACE) for drainable in self._current_stage
        ]

    async def _end(self, drainable: CanDrain, scope: Scope) -> None:
        with scope:
            await self._drain_safely(drainable)

    async def run(self, on_done: Callable[[], object], scope: Scope) -> None:
        """Wait for the start of the shutdown, drain one stage after the other, and call the function `on_done`."""
        with scope:
            await self._begun.wait()
            for stage in self._stages:
                self._current_stage = stage
                async with create_task_group() as group:
                    for drainable in stage:
                        group.start_soon(self._drain, drainable)
            self._current_stage = ()
            for urgent_drain in self._urgent_drains:
                await urgent_drain.wait()
        self._done.set()
        on_done()

    async def _drain(self, drainable: CanDrain) -> None:
        report = await self._drain_safely(drainable)
        self.report += report  # not `self.report += await ...`: that would drop reports of parallel drains

    async def _drain_safely(self, drainable: CanDrain) -> Drained:
        """Drain one object and return its report; store an error, because it must not stop the other drains."""
        try:
            return await drainable.drain(max(0.0, self._deadline - self._loop.now()))
        except Exception as error:
            _log.exception("%r could not be drained", drainable)
            self._errors.append(error)
            return Drained()

    async def finish(self, task: Spawned) -> None:
        """Wait for the end of the drain; if the caller is cancelled, end the work that still runs at once."""
        self.begin()
        try:
            await self._done.wait()
        finally:
            if not self._done.is_set():
                self._cancel_running_work()
            # After `_cancel_running_work`, each drain ends within the graces of its work.
            await task.wait()

    def check(self) -> None:
        """Raise the first error of an object that could not be drained."""
        raise_first(self._errors)


@has_to_be_entered_async("async with callboard.drain_on_signal(...):")
@asynccontextmanager
async def drain_on_signal(
    *objects: CanDrain | Sequence[CanDrain], timeout: float = PATIENCE
) -> AsyncGenerator[Shutdown]:
    """Drain agents, nodes, actors and engines when the process is told to end, by SIGTERM or Ctrl-C.

    Draining starts at the first signal, or when the block is left. A second signal cancels running work at once. If a
    server such as uvicorn has a SIGTERM handler, that is called, too, and the block goes on until the server leaves it.
    Without such a handler, the block is cancelled after draining. Signals reach only the main thread: in any other
    thread, draining starts when the block is left.

    Args:
        objects: in the order in which they are drained, callers first, such as an agent before the engine of
            its tools. The objects of a list are drained at the same time.
        timeout: seconds for all objects together; work that is cancelled then has its grace in addition.

    Raises:
        TypeError: if an object cannot be drained.
        ValueError: if there is no object, or the timeout is out of range.
        Exception: the error of an object that could not be drained; raised at the end of the block.
    """
    if not objects:
        raise ValueError("drain_on_signal() has nothing to drain: give it agents, nodes, supervisors or engines")
    stages: list[list[Any]] = [
        [*drainable] if isinstance(drainable, (list, tuple)) else [drainable] for drainable in objects
    ]
    for drainable in chain.from_iterable(stages):
        if not has_members_of(CanDrain, drainable):
            raise TypeError(
                f"drain_on_signal(...) takes what has a method drain(timeout), such as an agent; got {drainable!r}"
            )
    shutdown = Shutdown(stages, timeout)
    check_duration("drain_on_signal(timeout=...)", timeout)
    loop = current_loop()
    block = loop.scope(math.inf, DEFAULT_GRACE)
    with _signal_handlers(lambda: loop.post(shutdown.handle_signal)) as is_ours:
        task = loop.spawn(partial(shutdown.run, block.cancel if is_ours else lambda: None), DEFAULT_GRACE)
        try:
            with block:
                yield shutdown
        finally:
            await shutdown.finish(task)
    shutdown.check()


@contextmanager
def _signal_handlers(on_signal: Callable[[], object]) -> Generator[bool]:
    """Call `on_signal` at each SIGTERM or Ctrl-C during a `with` block; yield `True` if no server handles SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        _log.info("drain_on_signal: this is not the main thread, which alone hears signals")
        yield False
        return
    previous_handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    # SIGINT always has a handler (Python's, asyncio's or trio's), so only SIGTERM tells whether a server has one.
    is_ours = not callable(previous_handlers[signal.SIGTERM])

    def handle_signal(number: int, frame: FrameType | None) -> None:
        # Runs between any two instructions of the main thread: `on_signal` only posts to the event loop.
        on_signal()
        handler = previous_handlers[signal.Signals(number)]
        if callable(handler) and not is_ours:
            handler(number, frame)

    for number in _SIGNALS:
        signal.signal(number, handle_signal)
    try:
        yield is_ours
    finally:
        for number, handler in previous_handlers.items():
            if signal.getsignal(number) is handle_signal:  # a handler that the block has installed stays
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
