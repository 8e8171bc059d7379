"""Dedicated worker thread of one owner, for objects that must stay in one thread."""

import logging
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import sniffio
from anyio import CancelScope
from anyio.lowlevel import EventLoopToken, current_token

from callboard._loops._current import current_loop
from callboard._loops._worker_threads import outcome_in_thread

T = TypeVar("T")

_log = logging.getLogger("callboard")


class OwnThread:
    """Daemon thread that runs one job after another; the first job starts it, `close()` ends it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_started = False
        self._token: EventLoopToken | None = None

    async def run(self, fn: Callable[[], T], scope: CancelScope) -> T:
        """Run `fn` in the thread after all earlier jobs, with the caller's context variables.

        A cancelled caller returns at once, and the result is dropped. `anyio.from_thread` works inside `fn`; on
        asyncio, its `check_cancelled()` raises if `scope` is cancelled.
        """
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        context, wakeup = copy_context(), current_loop().wakeup()
        context.run(sniffio.current_async_library_cvar.set, None)  # no event loop runs in the thread
        token = self._token_of(current_token())
        outcome: list[tuple[T | None, BaseException | None]] = []
        cancelled: list[BaseException] = []

        def job() -> None:
            _here.cancelled = cancelled
            outcome.append(outcome_in_thread(lambda: context.run(fn), token, scope))
            wakeup.set()

        self._jobs.put(job)
        try:
            await wakeup.wait()
        except BaseException as cancellation:
            # The job stays in the queue, or runs on. On trio, `check_cancelled()` in the thread reads this list.
            cancelled.append(cancellation)
            raise
        value, error = outcome.pop()
        if error is None:
            return cast("T", value)
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame: a reference cycle

    def _token_of(self, token: EventLoopToken) -> EventLoopToken:
        if sniffio.current_async_library() != "trio":
            return token
        if self._token is None:
            self._token = _leading_back(token)
        return self._token

    def close(self, last: Callable[[], object] | None = None) -> None:
        """Ask the thread to end after its jobs and then `last`; return at once."""
        if last is not None:
            self._jobs.put(partial(_try, last))
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # or the thread keeps the last result alive while it waits for the next job


def _try(last: Callable[[], object]) -> None:
    try:
        last()
    except Exception:
        _log.exception("%r failed, in a thread that nobody waited for", last)


class _Here(threading.local):
    """Thread-local state of the running job."""

    cancelled: list[BaseException]
    """Cancellation of the job's caller; empty if the caller was not cancelled."""


_here = _Here()


def _leading_back(token: EventLoopToken) -> EventLoopToken:
    """Return a token with which `anyio.from_thread` reaches trio; trio's own token works only in threads of trio."""
    backend, native = cast("Any", token.backend_class), token.native_token

    class Backend(backend):  # type: ignore[misc, valid-type]  # the backend is known when it runs
        @classmethod
        def check_cancelled(cls) -> None:
            if _here.cancelled:
                raise _here.cancelled[0]

        @classmethod
        def run_async_from_thread(cls, func: Any, args: Any, token: object) -> Any:
            return super().run_async_from_thread(func, args, native if token is None else token)

        @classmethod
        def run_sync_from_thread(cls, func: Any, args: Any, token: object) -> Any:
            return super().run_sync_from_thread(func, args, native if token is None else token)

    return EventLoopToken(Backend, native)
