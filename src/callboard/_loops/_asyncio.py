"""asyncio backend: a cancelled task first gets time for clean-up, and is then cancelled repeatedly until it ends.

Children are native tasks. anyio's own task group would repeat the cancellation at every turn of the loop,
and a plain `finally: await client.aclose()`, which is what tools contain, would never complete.
"""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Self, TypeVar, cast

import sniffio
from anyio import CancelScope
from anyio._core._eventloop import get_async_backend  # private, but the public function looks for it at each call
from anyio.lowlevel import checkpoint, current_token

from callboard._loops._asyncio_scope import (
    AsyncioScope,
    foreign_cancellation,
    innermost,
    is_enforced,
)
from callboard._loops._left_tasks import without_mark
from callboard._loops._protocol import ChildFn
from callboard._loops._watchdog import LoopMonitor
from callboard._loops._worker_threads import run_in_worker_thread, run_job

T = TypeVar("T")


_spawned: set[asyncio.Task[None]] = set()


class AsyncioNursery:
    """Group of native asyncio tasks. Its block ends after all tasks have ended, even if its owner is cancelled."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # One bound method of each for all children: a batch may have thousands.
        self._on_exit, self._on_end = self._remove_child, self._end_task
        # A scope can cancel its task only after the child has entered the scope, see `cancel`.
        self._children: dict[asyncio.Task[None], AsyncioScope] = {}
        self._children_ended: asyncio.Future[None] | None = None
        self.cancel_called = False
        self._child_error: BaseException | None = None

    def start(self, child: ChildFn, grace: float) -> None:
        scope = AsyncioScope(math.inf, grace)
        scope.on_exit = self._on_exit
        task = self._loop.create_task(child(scope))
        if task.done():  # an eager task may have ended already
            self._end_task(task)
            return
        scope.task = task
        self._children[task] = scope
        if not scope.begun:
            # A child that ends before it enters its scope never calls `_remove_child`: a tool may cancel all tasks that
            # it finds, and Ctrl-C may come before the first line. The scope removes this callback when it is entered.
            scope.unless_begun = self._on_end
            task.add_done_callback(self._on_end)
        elif self.cancel_called:
            scope.cancel()  # an eager task cancelled this nursery in its first step, when it was not yet a child

    def _remove_child(self, scope: AsyncioScope, expected: bool) -> None:
        # A child awaits nothing after its scope (`ChildFn`), so it ends in this step, before the owner's next one. It
        # has no done callback: that would wake the owner one turn of the loop later, and cost each child time. A child
        # whose scope did not swallow its error or cancellation gets one, because `_end_task` has to read the error.
        task = scope.task
        assert task is not None
        if not expected:
            task.add_done_callback(self._end_task)
            return
        self._children.pop(task, None)
        if not self._children and self._children_ended is not None and not self._children_ended.done():
            self._children_ended.set_result(None)

    def _end_task(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (exc := task.exception()) is not None:
            self._child_error = exc  # children handle their own errors: only a bug in callboard arrives here
        if (scope := self._children.get(task)) is not None:
            scope.task = task
            self._remove_child(scope, True)
            scope.task = None  # the task's error refers to the scope: a reference cycle

    def cancel(self) -> None:
        if self.cancel_called:
            return
        self.cancel_called = True
        for task, scope in list(self._children.items()):
            if scope.begun and not task.done():
                scope.cancel()
            else:
                # asyncio throws the cancellation into the coroutine before its first line. The scope is never entered,
                # and its reference to the task would close a cycle: task, error, traceback, frame, scope.
                scope.task = None
                task.cancel()
                # A KeyboardInterrupt may have come before the callback was added, or after the child had removed it.
                task.add_done_callback(self._on_end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        try:
            if error is not None:
                await self._cancel_and_drain()
                return False
            # Each frame between the owner and this wait is entered again when the last child has ended.
            while self._children:
                self._children_ended = self._loop.create_future()
                await self._children_ended
        except asyncio.CancelledError:
            await self._cancel_and_drain()
            raise  # only now: no child may be alive when the owner goes on
        finally:
            del self._on_exit, self._on_end  # bound methods of this object: reference cycles
        if self._child_error is not None:
            raise self._child_error
        return False

    async def _cancel_and_drain(self) -> None:
        self.cancel()
        # The shield is against anyio scopes, which would cancel this task at every turn of the loop. A second native
        # cancellation is dropped: the first one, or the error of the block, is already propagating to the caller.
        # But if a scope around this task sent it because its grace is over, the children have no grace left either.
        with CancelScope(shield=True):
            while self._children:
                self._children_ended = self._loop.create_future()
                try:
                    await self._children_ended
                except asyncio.CancelledError:
                    for scope in self._children.values() if is_enforced() else ():
                        scope._send_cancellation()


def _post(loop: asyncio.AbstractEventLoop, fn: Callable[[], object]) -> bool:
    try:
        loop.call_soon_threadsafe(fn)
    except RuntimeError:
        return False  # the loop is closed: no task of it waits any more
    return True


class AsyncioWakeup:
    """Single-use event for a waiting asyncio task: a future that any thread may resolve."""

    __slots__ = ("_future", "_loop", "_thread")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def set(self) -> None:
        if threading.get_ident() == self._thread:
            self._resolve()
        else:
            _post(self._loop, self._resolve)

    def _resolve(self) -> None:
        if not self._future.done():  # the waiting task may have been cancelled, which cancels the future
            self._future.set_result(None)

    def wait(self) -> "asyncio.Future[None]":
        return self._future


class AsyncioSpawned:
    """Native asyncio task that does not belong to a nursery."""

    __slots__ = ("_scope", "_task")

    def __init__(self, child: ChildFn, grace: float) -> None:
        self._scope = AsyncioScope(math.inf, grace)
        # The task may outlive the call that starts it. So it is no task left behind, and it must not keep that call in
        # memory, such as by the scope of the call's task.
        context = without_mark(copy_context())
        context.run(innermost.set, None)
        task = self._task = asyncio.get_running_loop().create_task(child(self._scope), context=context)
        _spawned.add(task)  # the loop itself holds tasks by weak references only
        task.add_done_callback(_spawned.discard, context=context)

    def cancel(self) -> None:
        if self._scope.begun:
            self._scope.cancel()
        else:
            self._task.cancel()

    async def wait(self) -> None:
        await running_loop().outlast(self._wait)

    async def _wait(self) -> None:
        if not self._task.done():
            try:
                await asyncio.wait((self._task,))
            except asyncio.CancelledError:
                # If a scope around the caller has sent it because its grace is over, this task has none left either.
                if is_enforced():
                    self._scope._send_cancellation()
                raise


class AsyncioLoop:
    """Running asyncio event loop, of the standard library or of uvloop."""

    name = "asyncio"
    cancelled_class: type[BaseException] = asyncio.CancelledError
    nursery, scope, wakeup, spawn = AsyncioNursery, AsyncioScope, AsyncioWakeup, AsyncioSpawned

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.now = loop.time
        # anyio's function without its search for the running loop
        self.deadline: Callable[[], float] = get_async_backend("asyncio").current_effective_deadline
        self.offset = time.monotonic() - self.now()
        self.monitor = LoopMonitor(loop.call_soon_threadsafe)
        self.post = partial(_post, loop)
        self._thread = threading.get_ident()

    def is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def is_current(self) -> bool:
        # trio may run as a guest of an asyncio loop, in the same thread.
        if sniffio.thread_local.name is not None or asyncio._get_running_loop() is not self._loop:
            return False
        return asyncio.current_task(self._loop) is not None

    def task(self) -> int:
        return id(asyncio.current_task())

    def adopt(self, context: Context) -> None:
        context.run(innermost.set, innermost.get())
        context.run(sniffio.current_async_library_cvar.set, self.name)

    @contextmanager
    def shield(self, deadline: float) -> Generator[None]:
        scope = innermost.get()
        with CancelScope(deadline=deadline, shield=True):
            # A scope of a parent task counts, too: its cancellation would reach this task through the parent.
            # A scope of another loop does not: this code came over a bridge, and the scope's thread is another one.
            if scope is None or scope.task is None or scope.task.get_loop() is not asyncio.get_running_loop():
                yield
            else:
                with scope.shield():
                    yield

    async def outlast(self, fn: Callable[[], Awaitable[object]]) -> None:
        task, count = asyncio.current_task(), 0
        assert task is not None
        cancellation: asyncio.CancelledError | None = None
        # The shield stops scopes, until their grace is over. It does not stop `task.cancel()`.
        with self.shield(math.inf):
            while True:
                try:
                    await fn()
                    break
                except asyncio.CancelledError as error:
                    if task.cancelling() <= count:
                        raise  # nobody has cancelled this task again: the error is of `fn` itself
                    cancellation, count = error, task.cancelling()
        if cancellation is not None:
            try:
                raise cancellation
            finally:
                del cancellation  # its traceback refers to this frame: a reference cycle

    async def run_in_daemon(self, fn: Callable[[], T], scope: CancelScope) -> T:
        await checkpoint()  # a cancelled caller starts no function
        return await run_job(run_in_worker_thread, fn, scope, current_token(), self.wakeup())

    def is_cancelled(self) -> bool:
        scope = innermost.get()
        while scope is not None and not scope.cancel_called:
            scope = scope._outer
        return scope is not None

    async def raise_cancelled(self) -> None:
        raise asyncio.CancelledError

    # The next two methods recognize a cancellation that callboard did not request. They differ in cancellations by
    # other code. During an attempt, an `asyncio.timeout` of a middleware or a library may have cancelled the task. It
    # expects its own cancellation back, so the attempt must not turn it into an error. At the end of the call no such
    # block is open in the task. A cancellation that is still counted then was left behind by a careless library. It is
    # uncancelled here, or an outer `asyncio.timeout` or task group would take it for the caller's.

    def has_cancelled_itself(self, exc: BaseException) -> bool:
        foreign = foreign_cancellation(exc)
        return foreign is not None and foreign[1].cancelling() <= foreign[0]._cancelling_before

    def uncancel_foreign(self, exc: BaseException) -> bool:
        if (foreign := foreign_cancellation(exc)) is None:
            return False
        scope, task = foreign
        while task.cancelling() > scope._cancelling_before:
            task.uncancel()
        return True


def running_loop() -> AsyncioLoop:
    """Return the loop that runs the calling task."""
    native_loop: Any = asyncio.get_running_loop()
    # An attribute, and no table: anyio's table of run variables would keep each loop, to which its value refers.
    loop = native_loop.__dict__.get("_callboard_loop")
    if loop is None:
        loop = native_loop._callboard_loop = AsyncioLoop()
    return cast("AsyncioLoop", loop)
