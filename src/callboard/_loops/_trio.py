"""Supervision on trio: nurseries and cancel scopes as trio has them, cancellation as a level."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, copy_context
from types import TracebackType
from typing import Literal, Self, TypeVar

import sniffio
import trio
from anyio import CancelScope, CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from callboard._loops._protocol import ChildFn
from callboard._loops._watchdog import Pulse

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

    def move(self, deadline: float, *, grace: float | None = None) -> None:
        self._scope.deadline = deadline

    def cancel(self) -> None:
        self._scope.cancel()

    def __enter__(self) -> Self:
        self._scope.__enter__()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        return bool(self._scope.__exit__(exc_type, exc, tb))


class _NoScope:
    """Nothing: somebody else's cancel scope is the child's."""

    __slots__ = ()

    cancel_called = False

    def move(self, deadline: float, *, grace: float | None = None) -> None:
        """Nothing: no child of a nursery has a deadline of its own."""

    def cancel(self) -> None:
        """Nothing: children of a nursery are cancelled together."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> Literal[False]:
        return False


_NO_SCOPE = _NoScope()


class _SharedScope(_NoScope):
    """The scope that all children of a nursery enter: it counts them, and the last one that leaves wakes the owner.

    One for all, because a coroutine around each child, to count it, would weigh 0.2 KB.
    """

    __slots__ = ("children", "owner")

    def __init__(self) -> None:
        self.children = 0
        """How many were started and have not left."""
        self.owner: trio.lowlevel.Task | None = None
        """The task that waits for them, while it does."""

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> Literal[False]:
        self.children -= 1
        if not self.children and self.owner is not None:
            owner, self.owner = self.owner, None
            trio.lowlevel.reschedule(owner)
        return False


class TrioNursery:
    """A `trio.Nursery` out of which one error arrives bare, a cancellation and Ctrl-C too, never a group of one."""

    __slots__ = ("_manager", "_nursery", "_shared", "_was_cancelled")

    def __init__(self) -> None:
        self._manager = trio.open_nursery()
        self._shared = _SharedScope()
        self._was_cancelled = False

    @property
    def cancel_called(self) -> bool:
        return self._was_cancelled or self._nursery.cancel_scope.cancel_called

    def start(self, child: ChildFn, grace: float) -> None:
        self._shared.children += 1
        # With a name: trio would make one for each child.
        self._nursery.start_soon(child, self._shared, name="callboard child")

    def cancel(self) -> None:
        self._nursery.cancel_scope.cancel()

    async def _wait_until_empty(self) -> KeyboardInterrupt | None:
        """Wait for the children, or for the first cancellation, which is noted here even behind shields.

        The nursery itself waits for whoever is left. A child may even leave uncounted, because Ctrl-C came
        before it entered its scope: its error cancels the nursery, and so ends this wait.

        Returns:
            Ctrl-C, if that is what came; the nursery is to end the children first.
        """
        if self._shared.children:
            self._shared.owner = trio.lowlevel.current_task()
            try:
                await trio.lowlevel.wait_task_rescheduled(self._aborted)
            except trio.Cancelled:
                return None  # it is a level: the nursery meets it again
            except KeyboardInterrupt as interrupt:
                return interrupt
        return None

    def _aborted(self, _: object) -> trio.lowlevel.Abort:
        self._was_cancelled = True
        self._shared.owner = None
        return trio.lowlevel.Abort.SUCCEEDED

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        self._nursery = await self._manager.__aenter__()
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        if exc is None and (exc := await self._wait_until_empty()) is not None:
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
    """The task that waits, and whether it may go on; a `trio.Event` would have a set and a closure beside them."""

    __slots__ = ("_is_set", "_loop", "_task")

    def __init__(self, loop: "TrioLoop") -> None:
        self._loop = loop
        self._is_set = False
        self._task: trio.lowlevel.Task | None = None
        """The task that waits; `None` before and after."""

    def set(self) -> None:
        if self._loop.is_here():
            self._wake()
        else:
            self._loop.post(self._wake)

    @trio.lowlevel.enable_ki_protection
    def _wake(self) -> None:
        self._is_set = True
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> None:
        # Without Ctrl-C between the two steps, or `set` would wake the task out of some other wait.
        if self._is_set:
            await trio.lowlevel.checkpoint()
            return
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._aborted)

    def _aborted(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class TrioSpawned:
    """A system task in a cancel scope of its own."""

    __slots__ = ("_ended", "_scope")

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
        self._thread = threading.get_ident()
        self._token = trio.lowlevel.current_trio_token()
        self.pulse = Pulse(self._token.run_sync_soon)

    def is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def task(self) -> int:
        return id(trio.lowlevel.current_task())

    def post(self, fn: Callable[[], object]) -> bool:
        try:
            self._token.run_sync_soon(fn)
        except trio.RunFinishedError:
            return False  # nobody waits any more
        return True

    def adopt(self, context: Context) -> None:
        context.run(sniffio.current_async_library_cvar.set, self.name)

    def nursery(self) -> TrioNursery:
        return TrioNursery()

    def scope(self, deadline: float, grace: float) -> TrioScope:
        return TrioScope(deadline)

    def shield(self, deadline: float) -> AbstractContextManager[object]:
        return trio.CancelScope(deadline=deadline, shield=True)

    def wakeup(self) -> TrioWakeup:
        return TrioWakeup(self)

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
