"""Daemon threads that do one job after another on behalf of asyncio.

anyio's own are no daemons where the event loop runs in the main thread, so that the interpreter waits at its
end for a job that hangs; on trio they are. A thread is no loop's: one that is free serves the next that asks.
"""

import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import sniffio
from anyio import CancelScope
from anyio._core._eventloop import claim_worker_thread, threadlocals  # what makes `anyio.from_thread` work
from anyio.lowlevel import EventLoopToken, checkpoint, current_token

from callboard._loops._forks import after_fork_in_child
from callboard._loops._left_tasks import unmarked

T = TypeVar("T")

_IDLE = 10.0
"""Seconds without a job after which a thread ends."""

Job = Callable[[], Callable[[], object]]
"""What a worker does; it returns what is left to do when the worker is free again: to hand over the result."""


class _Worker:
    """A thread with a mailbox."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        threading.Thread(target=self._work, name="callboard worker", daemon=True).start()

    def give(self, job: Job) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE)
            except Empty:
                # Whoever takes a worker out of this dict gives it a job: if it is not in there, one is on its way.
                if _free.pop(self, None) is not None:
                    return
                continue
            hand_over = job()
            _free[self] = self
            hand_over()
            del job, hand_over


_free: dict[_Worker, _Worker] = {}
"""Workers without a job; every single operation on a dict is atomic, and no more is needed."""

after_fork_in_child(_free.clear)  # a child has the objects, but not the threads


def _a_worker() -> _Worker:
    try:
        return _free.popitem()[0]
    except KeyError:
        return _Worker()


async def run_in_worker(fn: Callable[[], T], scope: CancelScope) -> T:
    """Run `fn` in a daemon thread, with the caller's context variables; asyncio only.

    A cancelled caller goes at once, and the result is dropped. Within `fn`, `anyio.from_thread` leads back here.

    Args:
        fn: what to run.
        scope: what `anyio.from_thread.check_cancelled()` looks at.
    """
    await checkpoint()
    token, context = current_token(), unmarked(copy_context())
    context.run(sniffio.current_async_library_cvar.set, None)
    loop = cast("AbstractEventLoop", token.native_token)
    future: Future[T] = loop.create_future()

    def job() -> Callable[[], object]:
        value, error = outcome_in_thread(lambda: context.run(fn), token, scope)
        return lambda: _deliver(loop, future, value, error)

    _a_worker().give(job)
    return await future


def outcome_in_thread(
    fn: Callable[[], T], token: EventLoopToken, scope: CancelScope
) -> tuple[T | None, BaseException | None]:
    """What a function returns or raises in this thread, from which `anyio.from_thread` leads back to the loop."""
    with claim_worker_thread(token.backend_class, token.native_token):
        threadlocals.current_cancel_scope = scope
        try:
            return fn(), None
        except BaseException as error:
            return None, error
        finally:
            del threadlocals.current_cancel_scope


def _deliver(loop: AbstractEventLoop, future: "Future[Any]", value: object, error: BaseException | None) -> None:
    try:
        loop.call_soon_threadsafe(_settle, future, value, error)
    except RuntimeError:
        return  # the loop is closed, and nobody waits any more


def _settle(future: "Future[Any]", value: object, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
