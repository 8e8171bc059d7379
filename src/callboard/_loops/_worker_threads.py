"""Pool of daemon threads for sync functions on asyncio.

anyio's own worker threads are no daemons if the event loop runs in the main thread: at exit, the interpreter would
wait for a job that hangs. trio's threads are daemons. The pool is shared by all asyncio loops of the process.
"""

import threading
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import sniffio
from anyio import CancelScope
from anyio._core._eventloop import claim_worker_thread, threadlocals  # private, but `anyio.from_thread` reads only them
from anyio.lowlevel import EventLoopToken, checkpoint, current_token

from callboard._loops._forks import after_fork_in_child
from callboard._loops._left_tasks import without_mark

T = TypeVar("T")

_IDLE = 10.0
"""Seconds without a job after which a worker thread ends."""

Delivery = Callable[[], object]
"""Function that delivers the result of a job; the worker calls it when it is free."""

Job = Callable[[], Delivery]
"""Job of a worker thread."""


class _Worker:
    """Worker thread with a queue of jobs."""

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
                # A caller removes a worker from the dict before it gives it a job. So if the worker is not in there,
                # a job is about to arrive, and the thread must not end.
                if _free.pop(self, None) is not None:
                    return
                continue
            hand_over = job()
            # Free before the result is delivered: the caller's next function finds this thread instead of a new one.
            _free[self] = self
            hand_over()
            del job, hand_over  # or an idle thread keeps the last result alive


_free: dict[_Worker, _Worker] = {}
"""Idle worker threads; used from many threads without a lock, because each single dict operation is atomic."""

after_fork_in_child(_free.clear)  # a child has the objects, but not the threads


def give_to_worker(job: Job) -> None:
    try:
        worker = _free.popitem()[0]
    except KeyError:
        worker = _Worker()
    worker.give(job)


async def run_in_worker(fn: Callable[[], T], scope: CancelScope) -> T:
    """Run `fn` in a daemon thread, as `EventLoop.run_in_daemon` describes; asyncio only."""
    await checkpoint()  # a cancelled caller starts no function
    # Unmarked: a thread that runs on after its call must not look like a task that the call has left behind.
    token, context = current_token(), without_mark(copy_context())
    context.run(sniffio.current_async_library_cvar.set, None)  # no event loop runs in the thread
    loop = cast("AbstractEventLoop", token.native_token)
    future: Future[T] = loop.create_future()

    def job() -> Delivery:
        value, error = outcome_in_thread(lambda: context.run(fn), token, scope)

        def deliver() -> None:
            with suppress(RuntimeError):  # the loop is closed: no task of it waits any more
                loop.call_soon_threadsafe(_settle, future, value, error)

        return deliver

    give_to_worker(job)
    return await future


def outcome_in_thread(
    fn: Callable[[], T], token: EventLoopToken, scope: CancelScope
) -> tuple[T | None, BaseException | None]:
    """Call `fn` in this thread with `anyio.from_thread` enabled; return its value and error, one of which is `None`."""
    with claim_worker_thread(token.backend_class, token.native_token):
        threadlocals.current_cancel_scope = scope
        try:
            return fn(), None
        except BaseException as error:
            return None, error
        finally:
            del threadlocals.current_cancel_scope


def _settle(future: "Future[Any]", value: object, error: BaseException | None) -> None:
    if future.cancelled():  # the caller was cancelled meanwhile
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
