"""Middleware that runs elsewhere: in a worker thread, or on asyncio while the call is on trio.

What such a middleware calls next has to run back in the call's own event loop. The middleware asks, and the call's own
nursery answers, with the middleware's context variables: nothing that a middleware starts can outlive its call.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextvars import Context, copy_context
from functools import partial
from typing import Generic, TypeVar

from anyio import CancelScope

from callboard._calls._call import current_call
from callboard._calls._thread_pool import Threads
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._door import from_sync
from callboard._loops._protocol import EventLoop, Nursery, Scope

Q = TypeVar("Q")
A = TypeVar("A")

THREADS = 256
"""Worker threads of one middleware; a middleware that waits for a slow tool keeps its thread."""


class _Question(Generic[Q, A]):
    """A call that the middleware wants made, in the middleware's context."""

    def __init__(self, request: Q) -> None:
        self.request = request
        self.context: Context = copy_context()
        self.answer: Future[A] = Future()
        self.is_withdrawn = False
        self._nursery: Nursery | None = None

    async def be_answered(self, call_next: Callable[[Q], Awaitable[A]], scope: Scope) -> None:
        async def child(scope: Scope) -> None:
            with scope:
                await _settle(self.answer, call_next(self.request))

        try:
            with scope:
                async with current_loop().nursery() as self._nursery:
                    self._nursery.start(child, DEFAULT_GRACE)
                    if self.is_withdrawn:
                        self._nursery.cancel()
        finally:
            self.answer.cancel()  # without effect where there is an outcome

    def cancel(self) -> None:
        """End the call, because the middleware does not wait for it any more; in the event loop."""
        if self._nursery is None:
            self.answer.cancel()  # nobody has begun to make it
        else:
            self._nursery.cancel()


class _Inbox(Generic[Q, A]):
    """Questions from elsewhere to the event loop; `None` is the last."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._items: deque[_Question[Q, A] | None] = deque()
        self._wakeup = loop.wakeup()
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, request: Q) -> "_Question[Q, A]":
        """Have a call made; from any thread."""
        question: _Question[Q, A] = _Question(request)
        with self._lock:
            if self._closed:
                raise CancelledError
            self._items.append(question)
            self._wakeup.set()
        return question

    def withdraw(self, question: "_Question[Q, A]") -> None:
        """Have a call ended; from any thread."""
        with self._lock:
            question.is_withdrawn = True
            self._items.append(question)
            self._wakeup.set()

    def close(self) -> None:
        """Take no more questions, and leave those unanswered that nobody has begun to answer."""
        with self._lock:
            self._closed = True
            left = list(self._items)
            self._items.clear()
            self._items.append(None)
            self._wakeup.set()
        for question in left:
            if question is not None:
                question.answer.cancel()

    async def get(self) -> "_Question[Q, A] | None":
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                self._wakeup = self._loop.wakeup()
            await self._wakeup.wait()


async def _settle(future: "Future[A]", awaitable: Awaitable[A]) -> None:
    """Put what comes of an awaitable into a future, a wish to exit included; only a cancellation goes on."""
    try:
        future.set_result(await awaitable)
    except BaseException as exc:
        call = current_call()
        error = exc if call is None else call.as_error(exc) or exc  # nobody may have asked for a cancellation
        if isinstance(error, current_loop().cancelled_class):
            raise
        future.set_exception(error)
    finally:
        future.cancel()  # without effect where there is an outcome


async def _answer_while(run: Callable[[_Inbox[Q, A]], Awaitable[A]], call_next: Callable[[Q], Awaitable[A]]) -> A:
    """Run a middleware that is elsewhere and answer what it asks, until it has a result."""
    loop = current_loop()
    inbox: _Inbox[Q, A] = _Inbox(loop)
    outcome: Future[A] = Future()

    async def child(scope: Scope) -> None:
        try:
            with scope:
                await _settle(outcome, run(inbox))
        finally:
            inbox.close()

    async with loop.nursery() as nursery:
        nursery.start(child, DEFAULT_GRACE)
        while (question := await inbox.get()) is not None:
            if question.is_withdrawn:
                question.cancel()
                continue
            question.context.run(nursery.start, partial(question.be_answered, call_next), DEFAULT_GRACE)
    return outcome.result()


class SyncMiddleware(Generic[Q, A]):
    """A sync function `(request, call_next) -> answer`, made awaitable.

    Args:
        fn: called in a worker thread, with the context variables of the call.
    """

    def __init__(self, fn: Callable[[Q, Callable[[Q], A]], A]) -> None:
        self._fn = fn
        self._threads = Threads(repr(fn), THREADS)

    async def __call__(self, request: Q, call_next: Callable[[Q], Awaitable[A]]) -> A:
        return await _answer_while(partial(self._in_thread, request), call_next)

    async def _in_thread(self, request: Q, inbox: _Inbox[Q, A]) -> A:
        def call(inner: Q) -> A:
            return inbox.ask(inner).answer.result()

        return await self._threads.run(partial(self._fn, request, call))


class TwoHalves(Generic[Q, A]):
    """A middleware that has a sync and an async half; by which door its call was entered says which one runs.

    Args:
        sync: for what was entered from sync code.
        awaited: for the rest.
    """

    def __init__(
        self, sync: "SyncMiddleware[Q, A]", awaited: Callable[[Q, Callable[[Q], Awaitable[A]]], Awaitable[A]]
    ) -> None:
        self._sync = sync
        self._awaited = awaited

    async def __call__(self, request: Q, call_next: Callable[[Q], Awaitable[A]]) -> A:
        half = self._sync if from_sync() else self._awaited
        return await half(request, call_next)


class AsyncioMiddleware(Generic[Q, A]):
    """An async function `(request, call_next) -> answer` that needs asyncio; on trio it crosses the bridge.

    Args:
        fn: called on asyncio, with the context variables of the call.
    """

    def __init__(self, fn: Callable[[Q, Callable[[Q], Awaitable[A]]], Awaitable[A]]) -> None:
        self._fn = fn

    async def __call__(self, request: Q, call_next: Callable[[Q], Awaitable[A]]) -> A:
        if current_loop().name == "asyncio":
            return await self._fn(request, call_next)
        return await _answer_while(partial(self._across, request), call_next)

    async def _across(self, request: Q, inbox: _Inbox[Q, A]) -> A:
        async def call(inner: Q) -> A:
            question = inbox.ask(inner)
            answer = asyncio.wrap_future(question.answer)
            try:
                # `wait` leaves the answer alone if this task is cancelled. So does `shield`, but from Python 3.14 on
                # it also logs the answer's error then.
                await asyncio.wait([answer])
            except asyncio.CancelledError:
                # As on asyncio itself: who cancels a call waits for its end, and for its clean-up.
                inbox.withdraw(question)
                with CancelScope(shield=True):
                    await asyncio.wait([answer])
                if not answer.cancelled():
                    answer.exception()  # or asyncio logs that nobody has looked at it
                raise
            return answer.result()

        return await run_on_asyncio(partial(self._fn, request, call))
