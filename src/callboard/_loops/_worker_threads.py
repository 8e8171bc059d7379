"""Jobs in daemon threads, and the pool of such threads for sync functions on asyncio.

anyio's own worker threads are no daemons if the event loop runs in the main thread: at exit, the interpreter would
wait for a job that hangs. trio's threads are daemons. The pool is shared by all asyncio loops of the process.
"""

import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

import sniffio
from anyio import CancelScope
from anyio._core._eventloop import claim_worker_thread, threadlocals  # private, but `anyio.from_thread` reads only them
from anyio.lowlevel import EventLoopToken

from callboard._loops._forks import after_fork_in_child
from callboard._loops._left_tasks import without_mark
from callboard._loops._protocol import Wakeup

T = TypeVar("T")

_MAX_IDLE_TIME = 10.0
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
                job = self._jobs.get(timeout=_MAX_IDLE_TIME)
            except Empty:
                # A caller removes a worker from the dict before it gives it a job. So if the worker is not in there,
                # a job is about to arrive, and the thread must not end.
                if _idle_workers.pop(self, None) is not None:
                    return
                continue
            deliver_result = job()
            # Free before the result is delivered: the caller's next function finds this thread instead of a new one.
            _idle_workers[self] = self
            deliver_result()
            del job, deliver_result  # or an idle thread keeps the last result alive


_idle_workers: dict[_Worker, _Worker] = {}
"""Idle worker threads; used from many threads without a lock, because each single dict operation is atomic."""

after_fork_in_child(_idle_workers.clear)  # a child has the objects, but not the threads


def run_in_worker_thread(job: Job) -> None:
    try:
        worker = _idle_workers.popitem()[0]
    except KeyError:
        worker = _Worker()
    worker.give(job)


async def run_job(
    give: Callable[[Job], object], fn: Callable[[], T], scope: CancelScope, token: EventLoopToken, wakeup: Wakeup
) -> T:
    """Give a job that runs `fn` to a thread, with the caller's context variables; wait for it, and return its result.

    `wakeup` is a new one of the caller's loop. `anyio.from_thread` works inside `fn`; on asyncio, `check_cancelled()`
    raises if `scope` is cancelled.
    """
    # Unmarked: a thread that runs on after its call must not look like a task that the call has left behind.
    context = without_mark(copy_context())
    context.run(sniffio.current_async_library_cvar.set, None)  # no event loop runs in the thread
    outcome: list[tuple[T | None, BaseException | None]] = []

    def job() -> Delivery:
        outcome.append(_outcome_in_thread(lambda: context.run(fn), token, scope))
        return wakeup.set

    give(job)
    await wakeup.wait()
    value, error = outcome.pop()
    if error is None:
        return cast("T", value)
    try:
        raise error
    finally:
        del error  # its traceback refers to this frame: a reference cycle


def _outcome_in_thread(
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
