"""Sync links: they run in a worker thread, and what they call runs back in the event loop.

The thread asks, and the call's own nursery answers, with the thread's context variables: nothing that a
sync link starts can outlive its call.
"""

import threading
import warnings
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextvars import Context, copy_context
from functools import partial
from typing import Generic, TypeVar

from callboard._current_loop import current_loop
from callboard._limits import Gate
from callboard._loop import EventLoop, Scope
from callboard._threads import run_in_thread
from callboard._types import Limit
from callboard.exceptions import AbandonedThreadWarning

Q = TypeVar("Q")
A = TypeVar("A")

THREADS = 256
"""Worker threads of one link; a link that waits for a slow tool keeps its thread."""


class _Question(Generic[Q, A]):
    """A call that the thread wants made, in the thread's context."""

    def __init__(self, request: Q) -> None:
        self.request = request
        self.context: Context = copy_context()
        self.answer: Future[A] = Future()


class _Inbox(Generic[Q, A]):
    """Questions from the thread to the event loop; `None` is the last."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._items: deque[_Question[Q, A] | None] = deque()
        self._wakeup = loop.wakeup()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, item: "_Question[Q, A] | None") -> None:
        with self._lock:
            if self._closed and item is not None:
                raise CancelledError
            self._items.append(item)
            self._wakeup.set()

    async def get(self) -> "_Question[Q, A] | None":
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                self._wakeup = self._loop.wakeup()
            await self._wakeup.wait()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            questions, self._items = list(self._items), deque()
        for question in questions:
            if question is not None:
                question.answer.cancel()


class SyncLink(Generic[Q, A]):
    """A sync function `(request, call_next) -> answer`, made awaitable.

    Args:
        fn: called in a worker thread, with the context variables of the call.
    """

    def __init__(self, fn: Callable[[Q, Callable[[Q], A]], A]) -> None:
        self._fn = fn
        self._threads = Gate(Limit(concurrency=THREADS), f"the threads of {fn!r}")

    async def __call__(self, request: Q, call_next: Callable[[Q], Awaitable[A]]) -> A:
        loop = current_loop()
        await self._threads.enter(loop)
        inbox: _Inbox[Q, A] = _Inbox(loop)
        outcome: Future[A] = Future()
        try:
            async with loop.nursery() as nursery:
                nursery.start(partial(self._in_thread, request, inbox, outcome), _GRACE)
                while (question := await inbox.get()) is not None:
                    question.context.run(nursery.start, partial(_reply, question, call_next), _GRACE)
        finally:
            inbox.close()
        return outcome.result()

    async def _in_thread(self, request: Q, inbox: _Inbox[Q, A], outcome: "Future[A]", scope: Scope) -> None:
        abandoned = False

        def ask(inner: Q) -> A:
            question: _Question[Q, A] = _Question(inner)
            inbox.put(question)
            return question.answer.result()

        def on_abandoned() -> Callable[[], None]:
            nonlocal abandoned
            abandoned = True
            warnings.warn(
                f"the worker thread of {self._fn!r} goes on after its call has ended", AbandonedThreadWarning, 2
            )
            return self._threads.leave

        try:
            with scope:
                outcome.set_result(await run_in_thread(current_loop(), partial(self._fn, request, ask), on_abandoned))
        except Exception as exc:
            outcome.set_exception(exc)
        finally:
            inbox.close()  # a thread that asks on is told that nobody answers any more
            inbox.put(None)
            if not abandoned:
                self._threads.leave()


_GRACE = 5.0


async def _reply(question: _Question[Q, A], call_next: Callable[[Q], Awaitable[A]], scope: Scope) -> None:
    try:
        with scope:
            question.answer.set_result(await call_next(question.request))
    except Exception as exc:
        question.answer.set_exception(exc)
    finally:
        question.answer.cancel()  # without effect where there is an answer
