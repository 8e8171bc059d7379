"""Supervision on asyncio: a task is cancelled once, then left alone for its grace, then cancelled until it ends.

Children are native tasks. anyio's own task group would repeat the cancellation at every turn of the loop,
and a plain `finally: await client.aclose()`, which is what tools contain, would never complete.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Self, TypeVar

from anyio import CancelScope

from callboard._loops._protocol import ChildFn
from callboard._loops._swallowed import AGAIN, SwallowedCancellation
from callboard._loops._watchdog import Pulse
from callboard._loops._workers import run_in_worker

T = TypeVar("T")

_log = logging.getLogger("callboard")

_LATE = 0.1
"""Seconds by which a deadline may be missed; after that it was not the block that took too long."""
_CATCH_UP = 0.02
"""Seconds for such a block to take what is ready."""


class AsyncioScope:
    """A block in one task, with a deadline; the only door through which callboard cancels that task.

    Invariant: `_sent` is the number of cancellations of this scope which the task still counts in
    `task.cancelling()`; leaving the scope takes exactly those back.
    """

    __slots__ = (
        "_around",
        "_before",
        "_deadline",
        "_entered",
        "_grace",
        "_held",
        "_loop",
        "_outer",
        "_sent",
        "_shields",
        "_timer",
        "cancel_called",
        "task",
    )

    def __init__(self, deadline: float, grace: float) -> None:
        self.task: asyncio.Task[object] | None = None
        self.cancel_called = False
        self._deadline = deadline
        self._grace = grace
        self._sent = 0
        self._entered = False
        self._shields = 0
        self._held: list[AsyncioScope] | None = None
        self._outer: AsyncioScope | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        outer = _innermost.get()
        # A scope of another task is no outer scope: that task's cancellation reaches us by its own means.
        self._outer = outer if outer is not None and outer.task is task else None
        self.task = task
        self._loop = task.get_loop()
        self._before = task.cancelling()
        self._entered = True
        self._around = outer
        _innermost.set(self)
        if self._deadline != math.inf:
            self._timer = self._loop.call_at(self._deadline, self._expire)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        _innermost.set(self._around)  # not by token: 10,000 waiting calls would keep as many
        self._entered = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # its context leads back here
        if not self.cancel_called:
            return False
        root = self._root()
        if root._held and self in root._held:
            root._held.remove(self)
        task = self.task
        assert task is not None
        for _ in range(self._sent):
            task.uncancel()
        # Somebody else's cancellation goes on outward; ours ends here.
        return (
            exc_type is not None
            and issubclass(exc_type, asyncio.CancelledError)
            and task.cancelling() <= self._before
            and not self._outer_cancelled()
        )

    def cancel(self) -> None:
        """Cancel the block: once now, and until it ends when the grace is over."""
        if self.cancel_called or not self._entered:
            return
        self.cancel_called = True
        root = self._root()
        if root._shields:
            root._held = [*(root._held or ()), self]
        else:
            self._send()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._grace, self._enforce)

    def move(self, deadline: float) -> None:
        """Have the block end at another time than it was to."""
        if self.cancel_called or not self._entered:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._deadline = deadline
        self._timer = None if deadline == math.inf else self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        if self._loop.time() - self._deadline < _LATE:
            self.cancel()
        else:
            # Somebody held the loop: what had become ready by then goes first.
            self._timer = self._loop.call_later(_CATCH_UP, self.cancel)

    @contextmanager
    def shield(self) -> Generator[None]:
        """Hold cancellations back while the block runs, and deliver them at its end."""
        root = self._root()
        root._shields += 1
        try:
            yield
        finally:
            root._shields -= 1
            if not root._shields:
                held, root._held = root._held, None
                for scope in held or ():
                    # Not at once: a scope that ends right here takes its cancellation with it.
                    self._loop.call_soon(scope._send)

    def asked(self) -> bool:
        """Whether this scope or one around it in the same task was cancelled."""
        return self.cancel_called or self._outer_cancelled()

    def _outer_cancelled(self) -> bool:
        return self._outer is not None and self._outer.asked()

    def _root(self) -> "AsyncioScope":
        return self if self._outer is None else self._outer._root()

    def _send(self) -> None:
        if not self._entered:
            return
        assert self.task is not None
        self._sent += 1
        self.task.cancel()

    def _enforce(self) -> None:
        self._send()
        if self._sent == 3:
            _log.warning("%r goes on although it was cancelled and its grace is over", self.task)
        self._timer = self._loop.call_later(AGAIN, self._enforce)


_spawned: set[asyncio.Task[None]] = set()

_innermost: ContextVar[AsyncioScope | None] = ContextVar("callboard_asyncio_scope", default=None)


def _is_enforced() -> bool:
    """Whether the grace of a scope around this code, in its task, is over."""
    scope = _innermost.get()
    while scope is not None and scope._sent < 2:
        scope = scope._outer
    return scope is not None


class AsyncioNursery:
    """Native tasks, owned: the block is left when all have ended, whatever happens to the owner."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # One for all callbacks, instead of one for each.
        self._context = copy_context()
        self._on_end = self._ended
        self._children: dict[asyncio.Task[None], AsyncioScope] = {}
        self._empty: asyncio.Future[None] | None = None
        self.cancel_called = False
        self._bug: BaseException | None = None

    def start(self, child: ChildFn, grace: float) -> None:
        scope = AsyncioScope(math.inf, grace)
        task = self._loop.create_task(child(scope))
        if not task.done():  # an eager task may have ended already
            self._children[task] = scope
        task.add_done_callback(self._on_end, context=self._context)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._children.pop(task, None)
        if not task.cancelled() and (exc := task.exception()) is not None:
            self._bug = exc
        if not self._children and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def cancel(self) -> None:
        if self.cancel_called:
            return
        self.cancel_called = True
        for task, scope in list(self._children.items()):
            if scope.task is None:
                task.cancel()  # not begun: asyncio closes it without running a line
            else:
                scope.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        try:
            await self._drain(exc)
        finally:
            del self._on_end  # it leads back here
        if exc is not None:
            return False
        if self._bug is not None:
            raise self._bug
        return False

    async def _drain(self, exc: BaseException | None) -> None:
        if exc is not None:
            return await self._cancel_and_drain()
        try:
            return await self._wait_until_empty()
        except asyncio.CancelledError:
            await self._cancel_and_drain()
            raise

    async def _cancel_and_drain(self) -> None:
        self.cancel()
        # The shield is against anyio scopes, which would cancel us at every turn of the loop; a second
        # native cancellation is dropped, because the first one is already on its way to the caller. But
        # if it says that the grace of what is around us is over, then that of the children is, too.
        with CancelScope(shield=True):
            while self._children:
                try:
                    await self._wait_until_empty()
                except asyncio.CancelledError:
                    if _is_enforced():
                        for scope in self._children.values():
                            scope._send()

    async def _wait_until_empty(self) -> None:
        while self._children:
            self._empty = self._loop.create_future()
            await self._empty


class AsyncioWakeup:
    """A future that any thread may resolve."""

    __slots__ = ("_future", "_loop", "_thread")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def set(self) -> None:
        if threading.get_ident() == self._thread:
            self._resolve()
            return
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            return  # the loop is closed, and nobody waits any more

    def _resolve(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def wait(self) -> "asyncio.Future[None]":
        return self._future


class AsyncioSpawned:
    """A native task that is cancelled once."""

    def __init__(self, child: ChildFn, grace: float) -> None:
        self._scope = AsyncioScope(math.inf, grace)
        self._ended = AsyncioWakeup()
        task = self._task = asyncio.get_running_loop().create_task(child(self._scope))
        _spawned.add(task)  # the loop itself refers to tasks weakly
        task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[None]") -> None:
        _spawned.discard(task)
        self._ended.set()

    def cancel(self) -> None:
        if self._scope.task is None:
            self._task.cancel()
        else:
            self._scope.cancel()

    def wait(self) -> "asyncio.Future[None]":
        return self._ended.wait()


class AsyncioLoop:
    """asyncio, uvloop included."""

    name = "asyncio"
    cancelled_class: type[BaseException] = asyncio.CancelledError

    def __init__(self) -> None:
        self.now = asyncio.get_running_loop().time
        self.offset = time.monotonic() - self.now()
        self.pulse = Pulse(asyncio.get_running_loop().call_soon_threadsafe)

    def nursery(self) -> AsyncioNursery:
        return AsyncioNursery()

    def scope(self, deadline: float, grace: float) -> AsyncioScope:
        return AsyncioScope(deadline, grace)

    @contextmanager
    def shield(self, deadline: float) -> Generator[None]:
        scope = _innermost.get()
        with CancelScope(deadline=deadline, shield=True):
            # The scope of a task around ours counts: its cancellation would reach us through that task.
            if scope is None or scope.task is None or scope.task.get_loop() is not asyncio.get_running_loop():
                yield
            else:
                with scope.shield():
                    yield

    def wakeup(self) -> AsyncioWakeup:
        return AsyncioWakeup()

    def spawn(self, child: ChildFn, grace: float) -> "AsyncioSpawned":
        return AsyncioSpawned(child, grace)

    async def run_in_daemon(self, fn: Callable[[], T], scope: CancelScope) -> T:
        return await run_in_worker(fn, scope)

    def is_cancelled(self) -> bool:
        scope = _innermost.get()
        return scope is not None and scope.asked()

    def heeding(self, grace: float) -> AbstractContextManager[object]:
        return SwallowedCancellation(grace)

    async def raise_cancelled(self) -> None:
        raise asyncio.CancelledError

    def cancelled_itself(self, exc: BaseException) -> bool:
        found = _unasked(exc)
        return found is not None and found[1].cancelling() <= found[0]._before

    def cancelled_by_stranger(self, exc: BaseException) -> bool:
        if (found := _unasked(exc)) is None:
            return False
        scope, task = found
        while task.cancelling() > scope._before:
            task.uncancel()
        return True


def _unasked(exc: BaseException) -> "tuple[AsyncioScope, asyncio.Task[object]] | None":
    """The innermost scope and its task, if an error is a cancellation that nobody asked the scope for."""
    scope, task = _innermost.get(), asyncio.current_task()
    if not isinstance(exc, asyncio.CancelledError) or task is None or scope is None or scope.task is not task:
        return None
    return None if scope.asked() else (scope, task)
