"""What is drained when the process is told to end, by SIGTERM or Ctrl-C."""

import logging
import math
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import FrameType
from typing import Protocol, cast

from anyio import Event, create_task_group

from callboard._calls._under_way import PATIENCE
from callboard._drained import Drained
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import Scope, Spawned
from callboard._types import check_duration, has_members_of

_log = logging.getLogger("callboard")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CanDrain(Protocol):
    """What begins nothing new when it is drained, and says what became of what ran."""

    async def drain(self, timeout: float = ..., /) -> Drained:
        """Begin nothing new, let what runs finish within so many seconds, and end the rest."""
        ...


class Shutdown:
    """The end of a process, or of an application in it, as `drain_on_signal` brings it about.

    Args:
        stages: what is drained: one stage after the other, and what is in one at the same time.
        timeout: seconds for all of them together.
    """

    def __init__(self, stages: Sequence[Sequence[CanDrain]], timeout: float) -> None:
        self.report = Drained()
        """What became of what ran; complete when the block has been left."""
        self._stages = stages
        self._timeout = timeout
        self._loop = current_loop()
        self._told, self._over = Event(), Event()
        self._deadline = math.inf
        self._current: Sequence[CanDrain] = ()
        self._hurries: list[Spawned] = []
        self._errors: list[Exception] = []

    @property
    def has_begun(self) -> bool:
        """Whether the process was told to end, or the block is being left: nothing new will begin."""
        return self._told.is_set()

    @property
    def exit_code(self) -> int:
        """For `sys.exit`, once the block was left: 0, 3 or 4, as `Drained.exit_code` says."""
        return self.report.exit_code

    def begin(self) -> None:
        """Drain now, instead of waiting for a signal; from within the event loop's thread."""
        if not self.has_begun:
            self._deadline = self._loop.now() + self._timeout
            self._told.set()

    def hear(self) -> None:
        """Hear a signal: drain; at the second one, end at once what runs."""
        if self.has_begun:
            self._hurry()
        self.begin()

    def _hurry(self) -> None:
        self._deadline = self._loop.now()
        # A second drain, which waits for nothing, ends what the first one waits for; that one reports it.
        self._hurries += [self._loop.spawn(partial(self._end, one), DEFAULT_GRACE) for one in self._current]

    async def _end(self, one: CanDrain, scope: Scope) -> None:
        with scope:
            await self._drained(one)

    async def keep(self, then: Callable[[], object], scope: Scope) -> None:
        """Wait until it begins, and drain one stage after the other."""
        with scope:
            await self._told.wait()
            for stage in self._stages:
                self._current = stage
                async with create_task_group() as group:
                    for one in stage:
                        group.start_soon(self._drain, one)
            self._current = ()
            for hurry in self._hurries:
                await hurry.wait()
        self._over.set()
        then()

    async def _drain(self, one: CanDrain) -> None:
        report = await self._drained(one)
        self.report += report  # read only now: others add theirs meanwhile

    async def _drained(self, one: CanDrain) -> Drained:
        """Drain one of them; that this fails must not hinder the others."""
        try:
            return await one.drain(max(0.0, self._deadline - self._loop.now()))
        except Exception as error:
            _log.exception("%r could not be drained", one)
            self._errors.append(error)
            return Drained()

    async def finish(self, task: Spawned) -> None:
        """Wait until all has been drained; who is cancelled meanwhile has it ended at once."""
        self.begin()
        try:
            await self._over.wait()
        finally:
            if not self._over.is_set():
                self._hurry()
            with self._loop.shield(math.inf):
                await task.wait()

    def check(self) -> None:
        """Raise the first error of what could not be drained."""
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]


@asynccontextmanager
async def drain_on_signal(
    *things: CanDrain | Sequence[CanDrain], timeout: float = PATIENCE
) -> AsyncGenerator[Shutdown]:
    """Drain agents, nodes, actors and engines when the process is told to end, by SIGTERM or Ctrl-C.

    They are drained when the signal comes, or when the block is left. Where a server has handlers of its own, as
    uvicorn has, it is told, too, and leaves the block when its clients have their answers. Where nobody has, the block
    is cancelled when all has been drained. A second signal ends at once what runs. In another thread than the main one,
    where no signal can be heard, they are drained when the block is left.

    Args:
        things: in the order in which they are drained: what asks before what is asked, such as an agent before the
            engine of its tools; those in a list at the same time.
        timeout: seconds for all of them together; what is ended then has its grace besides.

    Raises:
        TypeError: for what cannot be drained.
        ValueError: for nothing, and for a number out of range.
        Exception: what a thing raised that could not be drained; at the end of the block.
    """
    shutdown = Shutdown(_stages(things), timeout)
    check_duration("drain_on_signal(timeout=...)", timeout)
    loop = current_loop()
    block = loop.scope(math.inf, DEFAULT_GRACE)
    with _heard(lambda: loop.post(shutdown.hear)) as is_ours:
        task = loop.spawn(partial(shutdown.keep, block.cancel if is_ours else _nothing), DEFAULT_GRACE)
        try:
            with block:
                yield shutdown
        finally:
            await shutdown.finish(task)
    shutdown.check()


def _nothing() -> None: ...


def _stages(things: Sequence[object]) -> list[list[CanDrain]]:
    """What is drained, a list for each stage."""
    if not things:
        raise ValueError("drain_on_signal() has nothing to drain: give it agents, nodes, supervisors or engines")
    return [_stage(one) for one in things]


def _stage(given: object) -> list[CanDrain]:
    found: list[CanDrain] = []
    for one in given if isinstance(given, (list, tuple)) else (given,):
        if not has_members_of(CanDrain, one):
            raise TypeError(
                f"drain_on_signal(...) takes what has a method drain(timeout), such as an agent; got {one!r}"
            )
        found.append(cast("CanDrain", one))
    return found


@contextmanager
def _heard(on_signal: Callable[[], object]) -> Generator[bool]:
    """Call a function for each signal, and whoever is called now, if that is a server.

    Gives whether there is none, so that it is ours to end what runs.
    """
    if threading.current_thread() is not threading.main_thread():
        _log.info("drain_on_signal: this is not the main thread, which alone hears signals")
        yield False
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # For Ctrl-C there is somebody always: Python, asyncio, trio.
    is_ours = not callable(before[signal.SIGTERM])

    def hear(number: int, frame: FrameType | None) -> None:
        on_signal()
        handler = before[signal.Signals(number)]
        if callable(handler) and not is_ours:
            handler(number, frame)

    for number in _SIGNALS:
        signal.signal(number, hear)
    try:
        yield is_ours
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is hear:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
