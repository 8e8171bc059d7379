"""trio backend: trio's own nurseries and cancel scopes; each checkpoint in a cancelled scope raises `Cancelled`."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Literal, Self, TypeVar

import sniffio
import trio
from anyio import CancelScope, CapacityLimiter, to_thread

from callboard._loops._protocol import ChildFn
from callboard._loops._watchdog import LoopMonitor

T = TypeVar("T")


class TrioScope:
    """Scope that wraps a `trio.CancelScope`; it ignores the time for clean-up, which only shielded blocks have."""

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

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        exit_scope: Any = self._scope.__exit__
        return bool(exit_scope(kind, error, traceback))


class _NoScope:
    """Scope without effect, for a task in a cancel scope of trio."""

    __slots__ = ()

    cancel_called = False

    def move(self, deadline: float, *, grace: float | None = None) -> None:
        """Do nothing: no child of a nursery has a deadline of its own."""

    def cancel(self) -> None:
        """Do nothing: children of a nursery are cancelled together."""

    cancel_alone = cancel

    def end_cancellation(self, error: BaseException | None) -> bool:
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> Literal[False]:
        return False


_NO_SCOPE = _NoScope()


class TrioChildScope(_NoScope):
    """Scope of a nursery's child, which is cancelled by the cancel scope of the nursery, or alone."""

    # A cancel scope of trio for each child would take an eighth of the memory of a waiting call, and a quarter of the
    # time of a short one. So it is made when a child is cancelled alone, which is rare, and is put around all scopes
    # that the child has entered. trio has no public names for this.

    __slots__ = ("_scope", "_task")

    def __init__(self) -> None:
        self._scope: trio.CancelScope | None = None

    def __enter__(self) -> Self:
        self._task = trio.lowlevel.current_task()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> Literal[False]:
        if self._scope is not None:
            self.end_cancellation(error)
        del self._task
        return False

    def cancel_alone(self) -> None:
        task = self._task
        nursery = task.parent_nursery
        if self._scope is not None or nursery is None:
            return
        outer = nursery._cancel_status
        innermost = outermost = task._cancel_status
        while outermost is not outer and outermost.parent is not outer:
            if outermost.parent is None:
                return  # scopes of the child were left in the wrong order: trio raises an error in it
            outermost = outermost.parent
        self._scope = scope = trio.CancelScope()
        scope._cancel_status = status = type(outer)(scope=scope, parent=outer)
        if innermost is outer:
            task._activate_cancel_status(status)
        else:
            outermost.parent = status
        scope.cancel()

    def end_cancellation(self, error: BaseException | None) -> bool:
        scope, self._scope = self._scope, None
        if scope is None:
            return False
        exit_scope: Any = scope.__exit__
        # It returns True for no error, too.
        return bool(exit_scope(None if error is None else type(error), error, None)) and error is not None


class TrioNursery:
    """Nursery of trio that raises a single exception as it is, instead of an exception group with one member."""

    __slots__ = ("_manager", "_nursery")

    def __init__(self) -> None:
        self._manager = trio.open_nursery()

    @property
    def cancel_called(self) -> bool:
        # `cancel_scope.cancel_called` is false if the owner was cancelled, and a child in a shielded block cannot ask
        # `trio.current_effective_deadline`. trio has no public name for this attribute.
        return self._nursery._cancel_status.effectively_cancelled

    def start(self, child: ChildFn, grace: float) -> None:
        # A fixed name: otherwise trio would build a name string for each child.
        self._nursery.start_soon(child, TrioChildScope(), name="callboard child")

    def cancel(self) -> None:
        self._nursery.cancel_scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        self._nursery = await self._manager.__aenter__()
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        bare: BaseException | None = None
        result: bool | None = False
        try:
            exit_nursery: Any = self._manager.__aexit__
            result = await exit_nursery(kind, error, traceback)
        except BaseExceptionGroup as group:
            errors: BaseExceptionGroup[BaseException] | None = group.split(trio.Cancelled)[1]
            if errors is None:
                # The group has only cancellations: raise the bare one of this task instead, if it is cancelled.
                await trio.lowlevel.checkpoint_if_cancelled()
                raise
            if len(errors.exceptions) > 1:
                raise
            bare = next(iter(errors.exceptions))
        if bare is not None:  # raised outside of `except`, or the group would be its `__context__`
            try:
                raise bare
            finally:
                bare = error = None  # their tracebacks refer to this frame: a reference cycle
        # A nursery whose children all caught their cancellation would not raise it here.
        await trio.lowlevel.checkpoint_if_cancelled()
        return bool(result)


class TrioWakeup:
    """Single-use event for one waiting trio task; needs less memory than a `trio.Event`."""

    __slots__ = ("_is_set", "_loop", "_task")

    def __init__(self, loop: "TrioLoop") -> None:
        self._loop = loop
        self._is_set = False
        self._task: trio.lowlevel.Task | None = None
        """Task that waits for the event; `None` before and after the wait."""

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
        # No Ctrl-C between the two steps below: `set` would later wake the task out of another, unrelated wait.
        if self._is_set:
            await trio.lowlevel.checkpoint()
            return
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class TrioSpawned:
    """System task of trio in a cancel scope of its own."""

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
            self._ended.set()  # also if trio ends and cancels its system tasks

    def cancel(self) -> None:
        self._scope.cancel()

    async def wait(self) -> None:
        with trio.CancelScope(shield=True):
            await self._ended.wait()


def _run_soon(token: trio.lowlevel.TrioToken, fn: Callable[[], object]) -> None:
    """Schedule a function in the loop of a token, from any thread; raise `RunFinishedError` if the loop has ended."""
    try:
        token.run_sync_soon(fn)
    except OSError as error:
        # After an error in its scheduler, trio closes the socket of the loop, and does not mark the loop as ended.
        raise trio.RunFinishedError("the event loop has crashed") from error


class TrioLoop:
    """Running trio event loop, on the real clock or on a test clock."""

    name = "trio"
    cancelled_class: type[BaseException] = trio.Cancelled
    nursery = TrioNursery

    def __init__(self) -> None:
        self.now = trio.lowlevel.current_clock().current_time
        self.offset = time.monotonic() - self.now()
        self._thread = threading.get_ident()
        self._token = trio.lowlevel.current_trio_token()
        self.monitor = LoopMonitor(partial(_run_soon, self._token))
        self.deadline: Callable[[], float] = trio.current_effective_deadline

    def is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def is_current(self) -> bool:
        return sniffio.thread_local.name == "trio" and trio.lowlevel.current_trio_token() is self._token

    def task(self) -> int:
        return id(trio.lowlevel.current_task())

    def post(self, fn: Callable[[], object]) -> bool:
        try:
            _run_soon(self._token, fn)
        except trio.RunFinishedError:
            return False  # trio has ended: no task of it waits any more
        return True

    def adopt(self, context: Context) -> None:
        context.run(sniffio.current_async_library_cvar.set, self.name)

    def scope(self, deadline: float, grace: float) -> TrioScope:
        return TrioScope(deadline)

    def shield(self, deadline: float) -> AbstractContextManager[object]:
        return trio.CancelScope(deadline=deadline, shield=True)

    async def outlast(self, fn: Callable[[], Awaitable[object]]) -> None:
        with trio.CancelScope(shield=True):
            await fn()

    def wakeup(self) -> TrioWakeup:
        return TrioWakeup(self)

    def spawn(self, child: ChildFn, grace: float) -> "TrioSpawned":
        return TrioSpawned(child)

    async def run_in_daemon(self, fn: Callable[[], T], scope: CancelScope) -> T:
        # trio's worker threads are daemon threads already.
        # Unbounded, because callers limit their threads themselves, and hold the permit as long as the thread runs.
        return await to_thread.run_sync(fn, abandon_on_cancel=True, limiter=CapacityLimiter(math.inf))

    def is_cancelled(self) -> bool:
        # Each attempt asks. `trio.current_effective_deadline` would walk through all scopes around the task.
        return trio.lowlevel.current_task()._cancel_status.effectively_cancelled

    async def raise_cancelled(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()

    def has_cancelled_itself(self, exc: BaseException) -> bool:
        # A body cannot create trio's `Cancelled`. An asyncio cancellation arrives only from code behind the bridge.
        return isinstance(exc, asyncio.CancelledError)

    uncancel_foreign = has_cancelled_itself


_current: trio.lowlevel.RunVar[TrioLoop] = trio.lowlevel.RunVar("callboard_event_loop")


def running_loop() -> TrioLoop:
    """Return the loop that runs the calling task."""
    try:
        return _current.get()
    except LookupError:
        _current.set(loop := TrioLoop())
        return loop
