"""Async functions in separate tasks: beside a block of code, or shielded from their caller's cancellation."""

import logging
import math
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import Self, TypeVar

import sniffio
from anyio import Event

from callboard._loops._current import current_loop
from callboard._loops._deadline import TimeLimits, current_time_limits
from callboard._loops._left_tasks import without_mark
from callboard._loops._protocol import EventLoop, Scope, Spawned
from callboard._loops._worker_threads import Delivery, run_in_worker_thread

T = TypeVar("T")

_log = logging.getLogger("callboard")

CANCEL_CHECK_INTERVAL = 1.0
"""Seconds between two checks whether the caller was cancelled, because a shielded task is not notified of it."""


class SideTask:
    """Async function that runs in a task beside an `async with` block, and is cancelled at its end; errors are logged.

    The code of the block may pause the function, which is cancelled then, and called again afterwards.
    """

    __slots__ = ("_fn", "_task")

    def __init__(self, fn: Callable[[], Awaitable[object]]) -> None:
        self._fn = fn
        self._task: Spawned | None = None

    async def __aenter__(self) -> Self:
        self.resume()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.pause()

    def resume(self) -> None:
        """Start the task of the function."""
        # No grace: the block must not wait for the clean-up of its background work.
        self._task = current_loop().spawn(self._run, 0.0)

    async def pause(self) -> None:
        """End the task of the function, if it runs."""
        if self._task is not None:
            await end_task(self._task)
            self._task = None

    async def _run(self, scope: Scope) -> None:
        try:
            with scope:
                await self._fn()
        except Exception:
            _log.exception("%r failed", self._fn)


async def end_task(task: Spawned) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await task.wait()


class CutOffError(Exception):
    """Raised if the caller was cancelled, and the shielded function did not end within the time for clean-up."""


async def shielded(fn: Callable[[], Awaitable[T]]) -> T:
    """Run an async function in a separate task, which may run a few more seconds after the caller was cancelled.

    Unlike `cleanup()`, it never ends silently: it returns the result, or raises an error.

    Args:
        fn: the async function, without arguments.

    Raises:
        CutOffError: if the grace was too short. Errors of the function are raised, too.
    """
    loop, ended = current_loop(), Event()
    results: list[T] = []
    errors: list[BaseException] = []

    async def child(scope: Scope) -> None:
        try:
            with scope:
                results.append(await fn())
        except loop.cancelled_class:
            raise
        except BaseException as error:  # raised in the caller below; a spawned task must not raise
            errors.append(error)
        finally:
            ended.set()

    # No grace for the child: `_wait_for_end` has already spent the caller's grace when the child is cancelled.
    task = loop.spawn(child, 0.0)
    cancellation = await _wait_for_end(ended, loop)
    if not ended.is_set():
        await end_task(task)  # not `ended.wait()`: a child that never began does not set the event
    return _result_or_raise(results, errors, cancellation)


async def run_in_shielded_thread(fn: Callable[[], T]) -> T:
    """Run `fn` in a daemon thread, shielded from cancellation; the thread continues even after a `CutOffError`."""
    loop, ended = current_loop(), Event()
    results: list[T] = []
    errors: list[BaseException] = []
    context = without_mark(copy_context())
    context.run(sniffio.current_async_library_cvar.set, None)  # no event loop runs in the thread

    def job() -> Delivery:
        try:
            results.append(context.run(fn))
        except BaseException as error:  # raised in the caller below
            errors.append(error)
        return partial(loop.post, ended.set)

    # A third of the time of a task that awaits a thread. `anyio.from_thread` does not work inside `fn`.
    run_in_worker_thread(job)
    return _result_or_raise(results, errors, await _wait_for_end(ended, loop))


def _result_or_raise(results: list[T], errors: list[BaseException], cancellation: BaseException | None) -> T:
    if errors:
        raise errors.pop()
    if not results:
        raise CutOffError from cancellation
    if cancellation is not None:
        raise cancellation  # the work is done, and its caller was cancelled meanwhile: no result is read
    return results.pop()


async def _wait_for_end(ended: Event, loop: EventLoop) -> BaseException | None:
    """Wait until the function has ended or a cancelled caller must go on; return the cancellation or `None`."""
    limits = current_time_limits(loop)
    cancellation: BaseException | None = None
    until = _end_of_wait(limits)
    while not ended.is_set() and loop.now() < until:
        try:
            with loop.shield(min(until, loop.now() + CANCEL_CHECK_INTERVAL)):
                await ended.wait()
            if ended.is_set():
                break
        except loop.cancelled_class as error:
            # On asyncio, `task.cancel()` reaches a task behind a shield. It is raised once only: keep it for the end.
            cancellation, until = error, min(until, limits.cleanup_deadline())
        until = min(until, _end_of_wait(limits))
    return cancellation


def _end_of_wait(limits: TimeLimits) -> float:
    """Return the loop time at which a cancelled caller stops waiting; `math.inf` if the caller is not cancelled."""
    loop = limits.loop
    if loop.deadline() > loop.now() and not loop.is_cancelled():
        return math.inf
    return limits.cleanup_deadline()
