"""Supervision on trio: nurseries and cancel scopes as trio has them, cancellation as a level."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from types import TracebackType
from typing import Literal, NoReturn, Self, TypeVar

import trio
from anyio import CancelScope, CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from callboard._loop import ChildFn
from callboard._pulse import Pulse

T = TypeVar("T")

# Callers bound their threads themselves, and hold the place for as long as the thread lives.
_unbounded: RunVar[CapacityLimiter] = RunVar("callboard_threads")


def _no_limit() -> CapacityLimiter:
    try:
        return _unbounded.get()
    except LookupError:
        limiter = CapacityLimiter(math.inf)
        _unbounded.set(limiter)
        return limiter


class TrioScope:
    """A `trio.CancelScope`; the grace is spent inside shielded blocks only."""

    __slots__ = ("_scope",)

    def __init__(self, deadline: float) -> None:
        self._scope = trio.CancelScope(deadline=deadline)

    @property
    def cancel_called(self) -> bool:
        return self._scope.cancel_called

    def move(self, deadline: float) -> None:
        self._scope.deadline = deadline

    def __enter__(self) -> Self:
        self._scope.__enter__()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        return bool(self._scope.__exit__(exc_type, exc, tb))


class _NoScope:
    """Nothing: the nursery's own cancel scope is the scope of its children."""

    cancel_called = False

    def move(self, deadline: float) -> None:
        """Nothing: no child of a nursery has a deadline of its own."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> Literal[False]:
        return False


_NO_SCOPE = _NoScope()


class TrioNursery:
    """A `trio.Nursery` out of which one error arrives bare, a cancellation and Ctrl-C too, never a group of one."""

    def __init__(self) -> None:
        self._manager = trio.open_nursery()
        self._open = 0
        self._owner: trio.lowlevel.Task | None = None
        """Once it waits for the children."""
        self._interrupt: BaseException | None = None
        self._was_cancelled = False

    @property
    def cancel_called(self) -> bool:
        return self._was_cancelled or self._nursery.cancel_scope.cancel_called

    def start(self, child: ChildFn, grace: float) -> None:
        self._open += 1
        self._nursery.start_soon(self._run, child)

    async def _run(self, child: ChildFn) -> None:
        try:
            await child(_NO_SCOPE)
        finally:
            self._open -= 1
            if not self._open and self._owner is not None:
                trio.lowlevel.reschedule(self._owner)

    def cancel(self) -> None:
        self._nursery.cancel_scope.cancel()

    async def _wait_until_empty(self) -> None:
        """As the nursery itself would wait; but this shows when the owner is cancelled, even behind shields."""
        if self._open:
            self._owner = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._aborted)

    def _aborted(self, raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
        self._was_cancelled = True
        try:
            raise_cancel()
        except trio.Cancelled:
            pass
        except KeyboardInterrupt as exc:
            self._interrupt = exc
            self.cancel()
        return trio.lowlevel.Abort.FAILED  # the children have to end first

    async def __aenter__(self) -> Self:
        self._nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        if exc is None:
            await self._wait_until_empty()
        if self._interrupt is not None:
            exc, self._interrupt = self._interrupt, None
            exc_type, tb = type(exc), exc.__traceback__
        bare: BaseException | None = None
        result: bool | None = False
        try:
            result = await self._manager.__aexit__(exc_type, exc, tb)
        except BaseExceptionGroup as group:
            others: BaseExceptionGroup[BaseException] | None = group.split(trio.Cancelled)[1]
            if others is None:
                # Only cancellations: raise the one that is meant for this task instead.
                await trio.lowlevel.checkpoint_if_cancelled()
                raise
            if len(others.exceptions) > 1:
                raise
            bare = next(iter(others.exceptions))
        if bare is not None:  # out here, or the group that holds it would be its context
            try:
                raise bare
            finally:
                bare = exc = None  # whose tracebacks lead here
        # A nursery whose children all caught their cancellation would not raise it here.
        await trio.lowlevel.checkpoint_if_cancelled()
        return bool(result)


class TrioWakeup:
    """A `trio.Event` that any thread may set."""

    __slots__ = ("_event", "_thread", "_token")

    def __init__(self) -> None:
        self._event = trio.Event()
        self._thread = threading.get_ident()
        self._token = trio.lowlevel.current_trio_token()

    def set(self) -> None:
        if threading.get_ident() == self._thread:
            self._event.set()
            return
        try:
            self._token.run_sync_soon(self._event.set)
        except trio.RunFinishedError:
            return  # the run is over, and nobody waits any more

    def wait(self) -> Awaitable[None]:
        return self._event.wait()


class TrioSpawned:
    """A system task in a cancel scope of its own."""

    def __init__(self, child: ChildFn) -> None:
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        trio.lowlevel.spawn_system_task(self._run, child, context=copy_context())

    async def _run(self, child: ChildFn) -> None:
        try:
            with self._scope:
                await child(_NO_SCOPE)
        finally:
            self._ended.set()

    def cancel(self) -> None:
        self._scope.cancel()

    def wait(self) -> Awaitable[None]:
        return self._ended.wait()


class TrioLoop:
    """trio, whichever clock it runs on."""

    name = "trio"
    cancelled_class: type[BaseException] = trio.Cancelled

    def __init__(self) -> None:
        self.now = trio.lowlevel.current_clock().current_time
        self.offset = time.monotonic() - self.now()
        self.pulse = Pulse(trio.lowlevel.current_trio_token().run_sync_soon)

    def nursery(self) -> TrioNursery:
        return TrioNursery()

    def scope(self, deadline: float, grace: float) -> TrioScope:
        return TrioScope(deadline)

    def shield(self, deadline: float) -> AbstractContextManager[object]:
        return trio.CancelScope(deadline=deadline, shield=True)

    def wakeup(self) -> TrioWakeup:
        return TrioWakeup()

    def spawn(self, child: ChildFn, grace: float) -> "TrioSpawned":
        return TrioSpawned(child)

    async def run_in_daemon(self, fn: Callable[[], T], scope: CancelScope) -> T:
        # trio's threads are daemons.
        return await to_thread.run_sync(fn, abandon_on_cancel=True, limiter=_no_limit())

    def is_cancelled(self) -> bool:
        return trio.current_effective_deadline() == -math.inf

    def heeding(self, grace: float) -> AbstractContextManager[object]:
        return nullcontext()  # whoever lets a cancellation fall here meets it again at the next checkpoint

    async def raise_cancelled(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()

    def cancelled_itself(self, exc: BaseException) -> bool:
        # trio's own Cancelled cannot be made up by a body; what came over a bridge can.
        return isinstance(exc, asyncio.CancelledError)

    cancelled_by_stranger = cancelled_itself
