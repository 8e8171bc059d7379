"""Middleware outside of the call's event loop: in a worker thread, or on asyncio while the call runs on trio.

The rest of the call has to run in the call's own event loop. So the middleware sends a request for it, and a nursery
of the call runs it with the middleware's context variables. It cannot outlive the call.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from anyio import CancelScope

from callboard._calls._call import current_call
from callboard._calls._thread_pool import WorkerThreads
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._entry_mode import is_sync_entry
from callboard._loops._protocol import EventLoop, Nursery, Scope

Q = TypeVar("Q")
A = TypeVar("A")

THREADS = 256
"""Maximum number of worker threads of one middleware; each call occupies a thread, also while a slow tool runs."""


class _Question(Generic[Q, A]):
    """Request of a middleware in another thread to run the rest of the call."""

    def __init__(self, request: Q) -> None:
        self.request = request
        self.context: Context = copy_context()  # created in the middleware's thread: its variables
        self.answer: Future[A] = Future()
        self.is_withdrawn = False  # set from any thread, read in the event loop
        self._scope: Scope | None = None

    async def be_answered(self, call_next: Callable[[Q], Awaitable[A]], scope: Scope) -> None:
        try:
            with scope, current_loop().scope(math.inf, DEFAULT_GRACE) as self._scope:
                if not self.is_withdrawn:  # before the scope was open
                    await _settle(self.answer, call_next(self.request))
        finally:
            # The middleware waits for the future in another thread, and must never wait for ever. No effect if it is
            # done already.
            self.answer.cancel()

    def cancel(self) -> None:
        """Cancel the rest of the call, because the middleware withdrew its request; call this in the event loop."""
        if self._scope is None:
            self.answer.cancel()  # it has not begun
        else:
            self._scope.cancel()


class _Questions(Generic[Q, A]):
    """Requests of a middleware in another thread; each is a child of a nursery in the call's event loop."""

    def __init__(self, loop: EventLoop, nursery: Nursery, call_next: Callable[[Q], Awaitable[A]]) -> None:
        self._loop = loop
        self._nursery = nursery
        self._call_next = call_next
        self.is_closed = False
        """True once the middleware has ended; read and set in the event loop."""

    def ask(self, request: Q) -> _Question[Q, A]:
        """Start the rest of the call, from any thread; return a `_Question`, which gets the answer."""
        question: _Question[Q, A] = _Question(request)
        if not self._loop.post(partial(self._start, question)):
            raise CancelledError
        return question

    def _start(self, question: _Question[Q, A]) -> None:
        if self.is_closed or self._nursery.cancel_called:
            question.answer.cancel()
            return
        # Started in the middleware's context: the rest of the call sees the variables that the middleware has set.
        child = partial(question.be_answered, self._call_next)
        question.context.run(self._nursery.start, child, DEFAULT_GRACE)

    def withdraw(self, question: _Question[Q, A]) -> None:
        """Cancel an earlier request; may be called from any thread."""
        question.is_withdrawn = True
        self._loop.post(question.cancel)


async def _settle(future: "Future[A]", awaitable: Awaitable[A]) -> None:
    """Store the result or error of an awaitable in a future; raise nothing but a requested cancellation of the task."""
    error: BaseException | None = None
    try:
        future.set_result(await awaitable)
    except BaseException as exc:
        call = current_call()
        error = exc if call is None else call.as_error(exc) or exc  # a cancellation that nothing requested is an error
        if isinstance(error, current_loop().cancelled_class):
            raise
        future.set_exception(error)
    finally:
        future.cancel()  # no effect if the future is done
        del future, error  # the traceback of the error refers to this frame: reference cycles


async def _answer_while(run: Callable[[_Questions[Q, A]], Awaitable[A]], call_next: Callable[[Q], Awaitable[A]]) -> A:
    """Run a middleware in another thread, and the rest of the call here; return the middleware's answer."""
    loop = current_loop()
    outcome: list[Future[A]] = [Future()]
    async with loop.nursery() as nursery:
        questions: _Questions[Q, A] = _Questions(loop, nursery, call_next)

        async def child(scope: Scope) -> None:
            try:
                with scope:
                    await _settle(outcome[0], run(questions))
            finally:
                questions.is_closed = True

        nursery.start(child, DEFAULT_GRACE)
    return outcome.pop().result()  # not kept: the traceback of its error refers to this frame, a reference cycle


class SyncMiddleware(Generic[Q, A]):
    """Async wrapper of a sync middleware `(request, call_next) -> answer`, which runs in a worker thread."""

    def __init__(self, fn: Callable[[Q, Callable[[Q], A]], A]) -> None:
        self._fn = fn
        self._threads = WorkerThreads(repr(fn), THREADS)

    async def __call__(self, request: Q, call_next: Callable[[Q], Awaitable[A]]) -> A:
        async def run(questions: _Questions[Q, A]) -> A:
            # Without a timeout: the future is always settled or cancelled.
            return await self._threads.run(
                lambda: self._fn(request, lambda inner: questions.ask(inner).answer.result())
            )

        return await _answer_while(run, call_next)


@dataclass(frozen=True, slots=True)
class TwoHalves(Generic[Q, A]):
    """Middleware with a sync and an async version; the sync version is used in runs that sync code started."""

    sync: SyncMiddleware[Q, A]
    awaited: Callable[[Q, Callable[[Q], Awaitable[A]]], Awaitable[A]]

    async def __call__(self, request: Q, call_next: Callable[[Q], Awaitable[A]]) -> A:
        half = self.sync if is_sync_entry() else self.awaited
        return await half(request, call_next)


class AsyncioMiddleware(Generic[Q, A]):
    """Async middleware `(request, call_next) -> answer` that needs asyncio; on trio it runs on the background loop."""

    def __init__(self, fn: Callable[[Q, Callable[[Q], Awaitable[A]]], Awaitable[A]]) -> None:
        self._fn = fn

    async def __call__(self, request: Q, call_next: Callable[[Q], Awaitable[A]]) -> A:
        if current_loop().name == "asyncio":
            return await self._fn(request, call_next)

        async def run(questions: _Questions[Q, A]) -> A:
            async def call(inner: Q) -> A:
                question = questions.ask(inner)
                answer = asyncio.wrap_future(question.answer)
                try:
                    # `wait` does not cancel the answer if this task is cancelled. Neither does `shield`, but from
                    # Python 3.14 on it then logs the answer's error.
                    await asyncio.wait([answer])
                except asyncio.CancelledError:
                    # As on asyncio itself: code that cancels a call waits for its end, clean-up included.
                    questions.withdraw(question)
                    with CancelScope(shield=True):
                        await asyncio.wait([answer])
                    if not answer.cancelled():
                        answer.exception()  # or asyncio logs that the exception was never retrieved
                    raise
                try:
                    return answer.result()
                finally:
                    del question, answer  # the traceback of their error refers to this frame: a reference cycle

            return await run_on_asyncio(partial(self._fn, request, call))

        return await _answer_while(run, call_next)
