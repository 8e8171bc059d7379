"""Bridges to a background asyncio loop: from sync code to async code, and from trio to asyncio.

The process shares one loop in a daemon thread, started on first use: a tool's pooled client or database connection
belongs to one loop. A cancelled or interrupted caller waits for the end of its call on that loop.
"""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, TypeVar, cast

import anyio
import sniffio
from anyio.lowlevel import checkpoint_if_cancelled

from callboard._loops._asyncio_scope import AsyncioScope
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE, active_time_limits
from callboard._loops._forks import after_fork_in_child

T = TypeVar("T")

# True below a sync call that was made in the background thread itself. The call blocks that thread, so everything
# below it needs a loop of its own.
_background_blocked: ContextVar[bool] = ContextVar("callboard_background_blocked", default=False)


class _BackgroundLoop:
    """asyncio loop in a daemon thread, and the calls that other threads have handed to it."""

    def __init__(self) -> None:
        self._has_started = threading.Event()
        self._is_ending = False
        self.calls: set[asyncio.Task[None]] = set()
        """Tasks of the calls that have not ended; the loop itself refers to them only weakly."""
        self.crossings: set[_BridgedCall[Any]] = set()
        """Calls whose callers wait; single operations on the set are atomic."""
        self._has_ended = False
        # No call is added after the end. Reentrant: garbage collection in `register` may close a generator, which makes
        # a call.
        self._guard = threading.RLock()
        self.thread = threading.Thread(target=self._main, name="callboard-asyncio", daemon=True)
        self.thread.start()
        self._has_started.wait()
        if self._has_ended:
            raise RuntimeError("callboard could not start its background event loop; are file descriptors left?")

    def _main(self) -> None:
        try:
            anyio.run(self._serve, backend="asyncio")
        finally:
            # Reached also after a SystemExit of a tool's task, which ends the loop. A loop that stops still takes calls
            # from other threads, but never begins them: their callers would wait for ever.
            with self._guard:
                self._has_ended = True
                lost = list(self.crossings)
            self._has_started.set()  # the loop may not have started
            for crossing in lost:
                crossing.lose()

    @property
    def is_usable(self) -> bool:
        """False after the loop has ended."""
        return not self._is_ending and self.thread.is_alive()

    def register(self, crossing: "_BridgedCall[Any]") -> None:
        """Register a call, which gets an error if the loop ends first; raise `RuntimeError` if the loop has ended."""
        with self._guard:
            if self._has_ended:
                raise RuntimeError(_LOST)
            self.crossings.add(crossing)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._has_started.set()
        try:
            await self._stopped.wait()
            while self.calls:
                await asyncio.wait(self.calls)
        finally:
            self._is_ending = True  # a loop that ends waits for its threads, which may take long

    def close(self) -> None:
        with suppress(RuntimeError):  # the loop has ended with the call
            self.loop.call_soon_threadsafe(self._stopped.set)
        self.thread.join()  # or each nested sync call would leave a thread and an open loop behind


_LOST = (
    "the call was cancelled from outside on the background event loop of callboard, or the loop has ended; "
    "a tool that cancels all tasks, or a task of a tool that raises SystemExit, does that"
)
_SIGNALS = 0.5
"""Longest time, in seconds, after which a waiting main thread handles a signal."""

# Two threads that need the loop first at the same moment must share one. Reentrant, like `_guard`.
_lock = threading.RLock()
_shared: _BackgroundLoop | None = None


@after_fork_in_child
def _forget() -> None:
    """Discard the parent's background loop in a forked child process."""
    global _lock, _shared
    # The thread of the loop does not run in the child, and `_lock` may be held.
    _lock, _shared = threading.RLock(), None


def _background() -> _BackgroundLoop:
    global _shared
    with _lock:
        if _shared is None or not _shared.is_usable:
            _shared = _BackgroundLoop()
        return _shared


def has_bridged_calls() -> bool:
    """Return whether code in another thread waits for a call on the shared background loop."""
    return _shared is not None and bool(_shared.crossings)


class _BridgedCall(Generic[T]):
    """Call of an async function on a background loop; a cancelled call gets time for clean-up, like all calls."""

    # Until `on_end`, only the thread of the background loop writes the fields. Afterwards the caller reads the result.

    def __init__(self, background: _BackgroundLoop, fn: Callable[[], Awaitable[T]], on_end: Callable[[], None]) -> None:
        limits = active_time_limits.get()
        self._background = background
        self._fn = fn
        self._on_end = on_end
        self._scope = AsyncioScope(math.inf, DEFAULT_GRACE if limits is None else limits.grace)
        self._cancelled = self._is_told = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self.ended = False

    def start(self) -> None:
        """Hand the call to the loop; raise `RuntimeError` if the loop has ended."""
        self._background.register(self)
        self._background.loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        # In the context of the caller, whose library may be trio.
        sniffio.current_async_library_cvar.set("asyncio")
        # A plain task: a portal and a nursery of anyio would cost twice as much as the crossing itself.
        task = self._background.loop.create_task(self._run())
        self._background.calls.add(task)
        task.add_done_callback(self._end_task)

    async def _run(self) -> None:
        if self._cancelled:
            return  # before this first step, or even before `start` had submitted the call: nobody waits for it
        try:
            with self._scope:
                try:
                    self._value = await self._fn()
                    self.ended = True
                except BaseException as exc:
                    # Every error is the caller's, and reaches it through `result`.
                    self._error = exc
                    is_cancelled, task = isinstance(exc, asyncio.CancelledError), asyncio.current_task()
                    if is_cancelled and self._scope.cancel_called:
                        raise
                    if is_cancelled and task is not None and task.cancelling():
                        self._error = RuntimeError(_LOST)
        finally:
            self._tell()

    def _end_task(self, task: "asyncio.Task[None]") -> None:
        self._background.calls.discard(task)
        if task.cancelled():
            self.lose()  # before its first step, by code that cancels all tasks of the loop

    def lose(self) -> None:
        """Fail an unfinished call that the background loop will not run; call this in the loop's thread."""
        if not self._is_told:
            self._error = RuntimeError(_LOST)
            self._tell()

    def _tell(self) -> None:
        """Wake the code that waits for the call, and remove the call from the loop's set of unfinished calls."""
        self._is_told = True
        self._on_end()
        # Only now: `has_bridged_calls` holds until the code that waits has been woken.
        self._background.crossings.discard(self)

    def cancel(self) -> None:
        """Cancel the call, from any thread, without waiting for its end; nothing may start it afterwards."""

        def cancel_there() -> None:
            self._cancelled = True
            self._scope.cancel()
            if not self._scope.begun:
                self._tell()

        if self not in self._background.crossings:
            self._tell()  # it was not handed over, or it has ended
            return
        try:
            self._background.loop.call_soon_threadsafe(cancel_there)
        except RuntimeError:  # the loop is closed
            self._tell()

    def result(self) -> T:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback refers to this frame: a reference cycle
        return cast("T", self._value)  # always set if there is no error


def run_from_sync(fn: Callable[[], Awaitable[T]]) -> T:
    """Run an async function on an asyncio loop in another thread, with the caller's context variables."""
    # A running event loop in the calling thread is blocked meanwhile.
    # The objects by which asyncio and callboard represent this thread's running loop, if any.
    loops: list[object] = []
    for running_loop in (asyncio.get_running_loop, current_loop):
        with suppress(RuntimeError):  # no loop runs in this thread
            loops.append(running_loop())
    standing = _standing.set((*_standing.get(), *loops))
    try:
        shared = None if _background_blocked.get() else _background()
        # The background thread must not wait for its own loop: that is a deadlock. It starts a private loop instead.
        if shared is not None and shared.thread is not threading.current_thread():
            return _wait_for(shared, fn)
        private = _BackgroundLoop()
        token = _background_blocked.set(True)
        try:
            return _wait_for(private, fn)
        finally:
            _background_blocked.reset(token)
            private.close()
    finally:
        _standing.reset(standing)


def iterate_from_sync(items: AsyncIterator[T]) -> Iterator[T]:
    """Yield the items of an async generator to sync code, and close the generator after the last item."""
    try:
        while (item := run_from_sync(partial(anext, items, _END))) is not _END:
            yield cast("T", item)
    finally:
        # After a second Ctrl-C, the cancelled request for an item goes on by itself, and ends the generator.
        if not cast("Any", items).ag_running:
            run_from_sync(cast("Any", items).aclose)


_END = object()

_standing: ContextVar[tuple[object, ...]] = ContextVar("callboard_standing", default=())


def stands_still(loop: object) -> bool:
    """Return whether an event loop is blocked by sync code that waits for the running code to end."""
    # `loop` is asyncio's or callboard's object for the loop.
    return loop in _standing.get()


def _wait_for(background: _BackgroundLoop, fn: Callable[[], Awaitable[T]]) -> T:
    ended = threading.Event()
    crossing = _BridgedCall(background, fn, ended.set)
    try:
        crossing.start()  # within the block: Ctrl-C may arrive as soon as the call runs
        _wait(ended)
    except BaseException:  # Ctrl-C; a second one leaves the wait below, and the cancelled call ends on its own
        crossing.cancel()
        _wait(ended)
        raise
    return crossing.result()


def _wait(ended: threading.Event) -> None:
    # A wait without a timeout is not interrupted by a signal that arrives just before it, or in another thread: Python
    # runs the signal's handler in the main thread, between two instructions.
    while not ended.wait(_SIGNALS):
        pass


async def run_on_asyncio(fn: Callable[[], Awaitable[T]]) -> T:
    """Run an async function that needs asyncio: on the running loop if it is asyncio, else on the background loop.

    On trio, `fn` runs in another thread and must not use objects that are bound to trio.

    Args:
        fn: the async function, without arguments.
    """
    loop = current_loop()
    if loop.name == "asyncio":
        return await fn()
    # The other thread would begin at once: a cancelled caller would send a request that nobody reads.
    await checkpoint_if_cancelled()
    wakeup = loop.wakeup()
    crossing = _BridgedCall(_background(), fn, wakeup.set)
    crossing.start()
    try:
        await wakeup.wait()
    except BaseException as error:  # a cancellation, or on trio also Ctrl-C
        crossing.cancel()
        # No limit here: the grace runs on the background loop, which cancels the call until it ends.
        with loop.shield(float("inf")):
            await wakeup.wait()
        if crossing.ended and isinstance(error, loop.cancelled_class):
            return crossing.result()  # it succeeded before the cancellation; trio raises that at the next checkpoint
        raise
    return crossing.result()
