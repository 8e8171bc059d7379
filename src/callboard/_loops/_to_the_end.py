"""What has to be done once it has begun, whoever is cancelled meanwhile."""

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from anyio import Event, current_effective_deadline

from callboard._loops._current import current_loop
from callboard._loops._deadline import Timed, current_time_limits
from callboard._loops._protocol import EventLoop, Scope

T = TypeVar("T")

LOOK = 1.0
"""Seconds between two looks at whether the caller has been cancelled: behind a shield nobody is told."""


class CutOffError(Exception):
    """The caller was cancelled, and what it waited for had not ended when its grace was over."""


async def to_the_end(work: Callable[[], Awaitable[T]]) -> T:
    """Do something that has to be done: without a cancellation it takes the time that it takes, and then its grace.

    Unlike `cleanup`, which is left without a word when its time is over, this has the result of its work, or raises.

    Args:
        work: runs in a task of its own, with the caller's context variables.

    Raises:
        CutOffError: if the work was cut off.
    """
    loop, ended = current_loop(), Event()
    results: list[T] = []
    errors: list[BaseException] = []

    async def child(scope: Scope) -> None:
        try:
            with scope:
                results.append(await work())
        except loop.cancelled_class:
            raise
        except BaseException as error:  # the caller's, whatever it is
            errors.append(error)
        finally:
            ended.set()

    task = loop.spawn(child, 0.0)
    cancellation = await _waited(ended, loop)
    if not ended.is_set():
        task.cancel()
        with loop.shield(math.inf):
            await task.wait()  # and not for its child, which may never have begun
    if errors:
        raise errors.pop()
    if not results:
        raise CutOffError from cancellation
    if cancellation is not None:
        raise cancellation
    return results.pop()


async def _waited(ended: Event, loop: EventLoop) -> BaseException | None:
    """Wait for the end of the work, or of the grace; returns the cancellation that has to go on, if there is one."""
    limits = current_time_limits(loop)
    cancellation: BaseException | None = None
    until = _until(limits)
    while not ended.is_set() and loop.now() < until:
        try:
            with loop.shield(min(until, loop.now() + LOOK)):
                await ended.wait()
        except loop.cancelled_class as error:
            # Only a cancellation of the task itself comes through the shield, on asyncio. It is said once: here.
            cancellation, until = error, min(until, limits.cleanup_deadline())
        until = min(until, _until(limits))
    return cancellation


def _until(limits: Timed) -> float:
    """When work has to end: the end of the grace if the caller has been cancelled, and never if not."""
    loop = limits.loop
    if current_effective_deadline() > loop.now() and not loop.is_cancelled():
        return math.inf
    return limits.cleanup_deadline()
