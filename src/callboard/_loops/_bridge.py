"""The two bridges: async code from sync code, and asyncio code from trio.

Both lead to one asyncio loop in a daemon thread, started when it is first needed and shared by the
process, because a pooled client or a database connection that a tool keeps belongs to one loop. A
cancelled or interrupted caller waits until what it started there has ended.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, TypeVar, cast

import anyio
from anyio.from_thread import BlockingPortal

from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE, current_timed
from callboard._loops._protocol import Nursery, Scope

T = TypeVar("T")

# Set in whatever runs below a sync call that was made in the background thread itself: that thread is
# blocked for as long, so the call and everything below it need a loop of their own.
_background_blocked: ContextVar[bool] = ContextVar("callboard_background_blocked", default=False)


class _BackgroundLoop:
    """An asyncio loop in a daemon thread, behind a portal."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self.pid = os.getpid()
        self.portal: BlockingPortal | None = None
        self.thread = threading.Thread(target=self._main, name="callboard-asyncio", daemon=True)
        self.thread.start()
        self._ready.wait()

    def _main(self) -> None:
        anyio.run(self._serve, backend="asyncio")

    async def _serve(self) -> None:
        async with BlockingPortal() as self.portal:
            self._ready.set()
            await self.portal.sleep_until_stopped()

    def submit(self, fn: Callable[[], object]) -> None:
        assert self.portal is not None
        self.portal.start_task_soon(fn)

    def close(self) -> None:
        assert self.portal is not None
        self.portal.start_task_soon(self.portal.stop)
        self.thread.join()


_lock = threading.Lock()
_shared: _BackgroundLoop | None = None


def _background() -> _BackgroundLoop:
    global _shared
    with _lock:
        # After a fork the child has the object, but not the thread.
        if _shared is None or _shared.pid != os.getpid():
            _shared = _BackgroundLoop()
        return _shared


class _Crossing(Generic[T]):
    """One call on a background loop: cancelled once, then given a grace, like every task of ours."""

    def __init__(self, background: _BackgroundLoop, fn: Callable[[], Awaitable[T]], on_end: Callable[[], None]) -> None:
        around = current_timed.get()
        self._grace = DEFAULT_GRACE if around is None else around.grace
        self._background = background
        self._fn = fn
        self._on_end = on_end
        self._nursery: Nursery | None = None
        self._cancelled = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self.ended = False
        background.submit(self._host)

    async def _host(self) -> None:
        try:
            async with current_loop().nursery() as self._nursery:
                self._nursery.start(self._child, self._grace)
                if self._cancelled:
                    self._nursery.cancel()
        except BaseException as exc:
            self._error = exc
            raise
        finally:
            self._on_end()

    async def _child(self, scope: Scope) -> None:
        with scope:
            try:
                self._value = await self._fn()
                self.ended = True
            except BaseException as exc:
                self._error = exc
                if self._cancelled and isinstance(exc, current_loop().cancelled_class):
                    raise

    def cancel(self) -> None:
        """Cancel the call; from any thread."""

        def cancel_there() -> None:
            self._cancelled = True
            if self._nursery is not None:
                self._nursery.cancel()

        self._background.submit(cancel_there)

    def result(self) -> T:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None
        return cast("T", self._value)  # set whenever there is no error


def run_from_sync(fn: Callable[[], Awaitable[T]]) -> T:
    """Run async code from sync code and return its result; the context variables go along.

    Works in a thread with or without a running event loop, though a loop in this thread stands still
    until the result is there. Interrupted by Ctrl-C, it cancels the call and waits for its end.

    Args:
        fn: called on an asyncio loop in another thread.
    """
    standing = _standing.set((*_standing.get(), *_loops_here()))
    try:
        shared = None if _background_blocked.get() else _background()
        if shared is not None and shared.thread is not threading.current_thread():
            return _wait_for(shared, fn)
        token = _background_blocked.set(True)
        private = _BackgroundLoop()
        try:
            return _wait_for(private, fn)
        finally:
            private.close()
            _background_blocked.reset(token)
    finally:
        _standing.reset(standing)


def pulled(items: AsyncIterator[T]) -> Iterator[T]:
    """An async generator for sync code; left early, it is closed."""
    try:
        while (item := run_from_sync(partial(_next, items))) is not _END:
            yield cast("T", item)
    finally:
        run_from_sync(cast("Any", items).aclose)


async def _next(items: AsyncIterator[object]) -> object:
    return await anext(items, _END)


_END = object()

_standing: ContextVar[tuple[object, ...]] = ContextVar("callboard_standing", default=())


def stands_still(loop: object) -> bool:
    """Whether a loop, asyncio's or ours, waits for sync code that waits for us: it would never do what we ask of it."""
    return loop in _standing.get()


def _loops_here() -> list[object]:
    """The event loop of this thread, as asyncio has it and as we do."""
    found: list[object] = []
    for which in (asyncio.get_running_loop, current_loop):
        with suppress(RuntimeError):
            found.append(which())
    return found


def _wait_for(background: _BackgroundLoop, fn: Callable[[], Awaitable[T]]) -> T:
    ended = threading.Event()
    crossing = _Crossing(background, fn, ended.set)
    try:
        ended.wait()
    except BaseException:
        crossing.cancel()
        ended.wait()
        raise
    return crossing.result()


async def run_on_asyncio(fn: Callable[[], Awaitable[T]]) -> T:
    """Run code that needs asyncio: here if asyncio runs here, else on the background loop.

    Args:
        fn: an async function of the asyncio world; on trio it runs in another thread, so objects bound
            to trio must not be used in it.
    """
    loop = current_loop()
    if loop.name == "asyncio":
        return await fn()
    wakeup = loop.wakeup()
    crossing = _Crossing(_background(), fn, wakeup.set)
    try:
        await wakeup.wait()
    except loop.cancelled_class:
        crossing.cancel()
        with loop.shield(float("inf")):
            await wakeup.wait()
        if crossing.ended:
            return crossing.result()  # it won the race; trio will say again that we are cancelled
        raise
    return crossing.result()
