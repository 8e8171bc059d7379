"""One supervised call and a batch of them: budget, attempts, places, timeout, grace, outcome.

Knows no LangChain: a call is a mapping, its body an async function, its result any object.
"""

import asyncio
import math
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar, TypeVarTuple, Unpack

from anyio import current_effective_deadline

from callboard._events import current_observers
from callboard._limits import Gate, Limiter, NoPlace
from callboard._loop import EventLoop, Nursery, Scope, current_loop
from callboard._threads import run_in_thread
from callboard._types import CallEvent, CallPhase, CallPolicy, Limit, Observer, OnError, ToolCallLike
from callboard.exceptions import (
    AbandonedThreadWarning,
    CallCancelledError,
    CallRejectedError,
    CallTimeoutError,
    DeadlineExceededError,
)

T = TypeVar("T")
R = TypeVar("R")
Args = TypeVarTuple("Args")

DEFAULT_GRACE = 5.0
"""Seconds of clean-up after a cancel where nobody said otherwise."""


class _Timed:
    """Something that has to end: until when, and with how much clean-up after that."""

    __slots__ = ("_cleanup_until", "grace", "loop", "until")

    def __init__(self, loop: EventLoop, until: float, grace: float) -> None:
        self.loop = loop
        self.until = until
        self.grace = grace
        self._cleanup_until: float | None = None

    def cleanup_deadline(self) -> float:
        now = self.loop.now()
        if current_effective_deadline() > now:
            return now + self.grace
        # Already cancelled: all clean-up that follows shares one grace.
        if self._cleanup_until is None:
            self._cleanup_until = now + self.grace
        return self._cleanup_until


_current: ContextVar[_Timed | None] = ContextVar("callboard_call", default=None)


@contextmanager
def cleanup() -> Generator[None]:
    """Shield the clean-up of a tool from cancellation, for as long as its grace lasts.

    `with callboard.cleanup(): await client.aclose()` completes on asyncio and on trio after a timeout, a
    failed neighbour or a cancelled caller, unless it takes longer than the grace of the call's policy
    (seconds); then it is cut off. Outside a call the grace is 5 seconds.
    """
    timed = _current.get() or _Timed(current_loop(), math.inf, DEFAULT_GRACE)
    with timed.loop.shield(timed.cleanup_deadline()):
        yield


def remaining() -> float:
    """Seconds that the running call has left; `math.inf` without an end, never below 0.

    The nearest of the attempt's timeout, the call's budget, those of the calls around it and, in async
    code, the deadlines of the event loop's own scopes. May be asked from a sync tool's thread too.
    """
    timed = _current.get()
    left = math.inf if timed is None else timed.until - timed.loop.now()
    try:
        loop = current_loop()
    except (RuntimeError, LookupError):  # a worker thread
        return max(0.0, left)
    return max(0.0, min(left, current_effective_deadline() - loop.now()))


class ThreadPlaces:
    """The worker threads of one node: how many there may be, and which have been abandoned."""

    def __init__(self, concurrency: int) -> None:
        self.limiter = Limiter(Limit(concurrency=concurrency), "the worker threads' queue")
        self.concurrency = concurrency
        self.abandoned: set[object] = set()

    @property
    def lost(self) -> str | None:
        """Why no thread can be had, in words, if that is so."""
        if len(self.abandoned) < self.concurrency:
            return None
        return f"all {self.concurrency} worker threads are held by calls that were given up and still run"


class Attempt:
    """One execution of a call's body: the places it holds, and the thread it may take."""

    __slots__ = ("_call", "_handed_over", "_places", "_threads")

    def __init__(self, call: "SupervisedCall[Any]", threads: ThreadPlaces | None) -> None:
        self._call = call
        self._threads = threads
        self._places: tuple[Gate, ...] = ()
        self._handed_over = False

    async def run_in_thread(self, fn: Callable[[], T]) -> T:
        """Run a sync body in a worker thread, which keeps the attempt's places until it ends."""
        return await run_in_thread(self._call.loop, fn, self._abandon_thread)

    async def enter(self, limiters: Iterable[Limiter]) -> None:
        """Take a place at every limiter, in turn.

        Raises:
            NoPlace: if one of them has none, and no room to wait either.
        """
        loop = self._call.loop
        if self._threads is not None:
            if (lost := self._threads.lost) is not None:
                raise NoPlace(lost)
            limiters = (*limiters, self._threads.limiter)
        for limiter in limiters:
            gate = limiter.gate(self._call.call, loop)
            if not gate.try_enter(loop):
                await gate.enter(loop)
            self._places = (*self._places, gate)
        for gate in self._places:
            await gate.await_start(loop)

    def leave(self) -> None:
        """Give the places back, unless a thread still needs them."""
        if not self._handed_over:
            self._leave_places()

    def _leave_places(self) -> None:
        places, self._places = self._places, ()
        for gate in reversed(places):
            gate.leave()

    def _abandon_thread(self) -> Callable[[], None]:
        self._handed_over = True
        threads, call = self._threads, self._call
        if threads is not None:
            threads.abandoned.add(self)
            if threads.lost is not None:
                threads.limiter.gate(call.call, call.loop).refuse_waiting(threads.lost)
        warnings.warn(
            f"the worker thread of tool {call.name!r} (call {call.id!r}) goes on after its call has ended; "
            "a sync tool can be stopped only if it asks anyio.from_thread.check_cancelled() from time to time",
            AbandonedThreadWarning,
            stacklevel=2,
        )

        def thread_ended() -> None:
            if threads is not None:
                threads.abandoned.discard(self)
            self._leave_places()

        return thread_ended


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a batch runs; the same for all its calls."""

    loop: EventLoop
    now: float
    until: float
    """The end of what runs around the batch, on the batch's own clock."""
    observers: tuple[Observer, ...]


def surroundings() -> Surroundings:
    """Where the calls that are started here will run."""
    loop = current_loop()
    now = loop.now()
    around = _current.get()
    # What runs around us may have another loop, and that another clock.
    until = math.inf if around is None else now + around.until - around.loop.now()
    return Surroundings(loop, now, until, current_observers())


class SupervisedCall(_Timed, Generic[T]):
    """A call in the hands of its batch, from the queue to its outcome.

    Args:
        call: the tool call.
        policy: its timeout, budget and grace; the limit is in `limiters`.
        limiters: what it has to pass before a body starts, narrowest first, so that a call which waits for
            a narrow one holds no place in a wide one.
        run: what to do with it; starts bodies through `attempt` only.
        around: where it runs.
    """

    __slots__ = (
        "_attempts",
        "_batch",
        "_limiters",
        "_observers",
        "_queue_wait",
        "_queued_at",
        "call",
        "ended",
        "error",
        "handled",
        "policy",
        "result",
        "run",
        "running",
        "waiting",
    )

    def __init__(
        self,
        call: ToolCallLike,
        policy: CallPolicy,
        limiters: Sequence[Limiter],
        run: "Callable[[SupervisedCall[T]], Awaitable[T]]",
        around: Surroundings,
    ) -> None:
        until = around.until if policy.budget is None else min(around.until, around.now + policy.budget)
        super().__init__(around.loop, until, DEFAULT_GRACE if policy.grace is None else policy.grace)
        self.call = call
        self.policy = policy
        self.run = run
        self.result: T | None = None
        self.error: BaseException | None = None
        self.handled: BaseException | None = None
        """The error that the result stands for, where one became a result."""
        self.ended = False
        self.running = self.waiting = False
        self._limiters = limiters
        self._batch: Batch[T] | None = None
        self._observers = around.observers
        self._queued_at = around.now
        self._queue_wait = 0.0
        self._attempts = 0

    @property
    def name(self) -> str:
        return str(self.call["name"])

    @property
    def id(self) -> str | None:
        return self.call.get("id")

    def begin(self, batch: "Batch[T]") -> None:
        """Note that the call is in its task now."""
        self._batch = batch
        _current.set(self)

    def end(self, result: T) -> None:
        self.result = result
        self.ended = True
        self._tell("ended", error=self.handled, queue_wait=self._queue_wait)

    def end_with(self, error: BaseException) -> bool:
        """Note what the call ended with; False for a cancellation that somebody asked for."""
        if self.loop.cancelled_itself(error):
            error = CallCancelledError(self.name, self.id)
        elif isinstance(error, self.loop.cancelled_class):
            self._tell("ended", error=error, queue_wait=self._queue_wait)
            return False
        self.error = error
        self.ended = True
        self._tell("ended", error=error, queue_wait=self._queue_wait)
        return True

    async def within_budget(self, run: Callable[[], Awaitable[R]]) -> R:
        """Run what belongs to the call, queue wait and backoff included, until its budget is spent.

        Raises:
            DeadlineExceededError: if it was.
        """
        budget = self.policy.budget
        if budget is None:
            return await run()
        cause: Exception | None = None
        with self.loop.scope(self._queued_at + budget, self.grace) as scope:
            try:
                return await run()
            except Exception as exc:
                if not scope.cancel_called:
                    raise
                cause = exc
        raise DeadlineExceededError(self.name, self.id, budget, started=self._attempts > 0) from cause

    async def attempt(
        self,
        threads: ThreadPlaces | None,
        body: Callable[[Attempt, Unpack[Args]], Coroutine[Any, Any, R]],
        *args: Unpack[Args],
    ) -> R:
        """Run a body once: wait for its places, start it, end it when its timeout is over.

        Args:
            threads: where a body that runs in a thread finds its thread.
            body: takes the attempt, for `Attempt.run_in_thread`, and `args`.
            args: for the body.

        Raises:
            CallRejectedError: if there is no place for it.
            CallTimeoutError: if it took longer than the policy's timeout.
            CallCancelledError: if it cancelled itself.
        """
        if self._batch is not None and self._batch.closed:
            await self.loop.raise_cancelled()
        attempt = Attempt(self, threads)
        try:
            if self._limiters or threads is not None:
                await self._enter(attempt)
            self._attempts += 1
            self.running = True
            if self.policy.timeout is None and not self._observers:
                return await body(attempt, *args)
            return await self._watched(partial(body, attempt, *args))
        except asyncio.CancelledError as exc:
            if not self.loop.cancelled_itself(exc):
                raise
            raise CallCancelledError(self.name, self.id) from exc
        finally:
            self.running = False
            attempt.leave()

    async def _enter(self, attempt: Attempt) -> None:
        since = self.loop.now()
        self.waiting = True
        self._tell("queued")
        try:
            await attempt.enter(self._limiters)
        except NoPlace as full:
            raise CallRejectedError(self.name, self.id, str(full)) from None
        finally:
            self.waiting = False
            self._queue_wait += self.loop.now() - since

    async def _watched(self, body: Callable[[], Coroutine[Any, Any, R]]) -> R:
        error: BaseException | None = None
        self._tell("started", queue_wait=self._queue_wait)
        try:
            return await (body() if self.policy.timeout is None else self._timed(body))
        except BaseException as exc:
            error = exc
            raise
        finally:
            self._tell("attempt_ended", error=error)

    async def _timed(self, body: Callable[[], Coroutine[Any, Any, R]]) -> R:
        timeout = self.policy.timeout
        assert timeout is not None
        deadline = self.loop.now() + timeout
        token = _current.set(_Timed(self.loop, min(self.until, deadline), self.grace))
        cause: Exception | None = None
        try:
            with self.loop.scope(deadline, self.grace) as scope:
                try:
                    return await body()
                except Exception as exc:
                    if not scope.cancel_called:
                        raise
                    cause = exc  # what the clean-up raised; the timeout is why it ran
        finally:
            _current.reset(token)
        raise CallTimeoutError(self.name, self.id, timeout) from cause

    def _tell(self, phase: CallPhase, *, error: BaseException | None = None, queue_wait: float = 0.0) -> None:
        if not self._observers:
            return
        event = CallEvent(
            phase=phase,
            tool=self.name,
            call_id=self.id,
            time=self.loop.now(),
            attempt=self._attempts,
            queue_wait=queue_wait,
            error=error,
        )
        for observer in self._observers:
            observer(event)


class Batch(Generic[T]):
    """Calls that run together and end together.

    Args:
        calls: in the order in which they are to start.
        on_error: "cancel" the others when a call fails, or let them "finish" first.
        signals: exceptions that are no failure: the others go on.
    """

    def __init__(
        self, calls: Sequence[SupervisedCall[T]], *, on_error: OnError, signals: tuple[type[Exception], ...] = ()
    ) -> None:
        self.calls = calls
        self.closed = False
        self._on_error = on_error
        self._signals = signals
        self._failed: list[SupervisedCall[T]] = []
        self._next = iter(calls)

    async def run(self) -> None:
        """Run every call to its end.

        Raises:
            BaseException: the error of a call, bare; of several, the first with the others in its notes
                ("cancel") or a group of them ("finish"). Nothing that was started is alive by then.
        """
        try:
            async with current_loop().nursery() as nursery:
                self._nursery: Nursery = nursery
                for call in self.calls:
                    if self.closed:
                        break
                    nursery.start(self._run_next, call.grace)
        finally:
            self.closed = True
        if self._failed:
            self._raise_failures()

    async def _run_next(self, scope: Scope) -> None:
        # Not "run call n": trio begins children in any order, so each takes the next call when it begins.
        call = next(self._next)
        with scope:
            call.begin(self)
            try:
                call.end(await call.run(call))
            except BaseException as error:
                if not call.end_with(error):
                    raise
        if call.error is not None and not isinstance(call.error, self._signals):
            self._fail(call)

    def _fail(self, call: SupervisedCall[T]) -> None:
        self._failed.append(call)
        if self._on_error == "cancel" or not isinstance(call.error, Exception):
            self.closed = True
            self._nursery.cancel()

    def _raise_failures(self) -> NoReturn:
        errors = [call.error for call in self._failed if call.error is not None]
        first, others = errors[0], errors[1:]
        try:
            if others and self._on_error == "finish":
                raise BaseExceptionGroup(f"{len(errors)} of {len(self.calls)} tool calls failed", errors)
            for call in self._failed[1:]:
                first.add_note(f"Tool {call.name!r} (call {call.id!r}) failed too: {call.error!r}")
            raise first
        finally:
            del errors, first, others  # a traceback that leads back to its own exception is a cycle
