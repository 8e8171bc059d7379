"""Supervised call: runs the attempts of one tool call with limits and timeouts, and records the outcome.

A call has a time budget as a whole. The middleware around its attempts has a timeout of its own.
Independent of LangChain: a call is a mapping, its body an async function, its result any object.
"""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, TypeVarTuple

from callboard._calls._attempt import Attempt, ThreadPermits
from callboard._calls._batch_context import BatchContext
from callboard._calls._limits import Gates, NoPlaceError
from callboard._calls._observers import numbers
from callboard._calls._progress import Progress, Reporter, Throttle, reporter
from callboard._loops._deadline import DEFAULT_GRACE, INSTANT, Timed, TimeLimit, current_timed, is_cleaning_up
from callboard._loops._idle import report_activity
from callboard._loops._protocol import ChildFn, Scope
from callboard._loops._watchdog import Holder, marks
from callboard._records._events import ActorObserver, CallEvent, CallPhase
from callboard._records._policies import CallPolicy, ToolCallLike
from callboard.exceptions import CallCancelledError, CallRejectedError, CallTimeoutError, DeadlineExceededError

R = TypeVar("R")


class CallTime(Timed):
    """Tool call with its time limits; base class of `SupervisedCall`."""

    __slots__ = ("_around", "_away", "_middleware_scope", "attempts", "call", "policy")

    def __init__(self, call: ToolCallLike, policy: CallPolicy, around: BatchContext) -> None:
        super().__init__(around.loop, _end(policy, around), DEFAULT_GRACE if policy.grace is None else policy.grace)
        self.call = call
        self.policy = policy
        self.attempts = 0
        """Number of attempts whose bodies have begun."""
        self._around = around
        self._middleware_scope: Scope | None = None
        self._away = 0  # number of open `outside_timeout` blocks: a middleware may run several attempts at once

    @property
    def name(self) -> str:
        return str(self.call["name"])

    @property
    def id(self) -> str | None:
        return self.call.get("id")

    async def within_budget(self, run: Callable[[], Awaitable[R]], *, at_least: float = 0.0) -> R:
        """Run the call, queue wait and backoff included, and raise `DeadlineExceededError` when its budget is spent.

        A call whose budget ran out in the queue still gets `at_least` seconds.
        """
        budget = self.policy.budget
        if budget is None:
            return await run()
        deadline = max(self._around.now + budget, self.loop.now() + at_least)
        with (limit := TimeLimit(self.loop.scope(deadline, self.grace))):
            return await run()
        # Reached only if the scope ended the block.
        raise DeadlineExceededError(self.name, self.id, budget, started=self.attempts > 0) from limit.cause

    def budget_is_spent(self) -> bool:
        """Return whether the budget is spent; for code inside, which sees the end of the budget as a cancellation."""
        budget = self.policy.budget
        # The deadline may fire a fraction of a microsecond early: clocks differ in the last digits.
        return budget is not None and self.loop.now() >= self._around.now + budget - INSTANT

    async def within_timeout(self, middleware: Callable[[], Awaitable[R]], *, at_least: float = 0.0) -> R:
        """Run the middleware around a call; raise `CallTimeoutError` if it runs longer than the timeout by itself.

        Attempts and deliberate waits do not count. The first timeout is at least `at_least` seconds.
        """
        timeout = self.policy.timeout
        if timeout is None or self.policy.budget is not None:  # a budget bounds the middleware already
            return await middleware()
        began, timeout = monotonic(), max(timeout, at_least)
        scope = self._middleware_scope = self.loop.scope(math.inf, self.grace)
        try:
            with (limit := TimeLimit(scope)):
                self._move_deadline(self.loop.now() + timeout)
                return await middleware()
        finally:
            self._move_deadline(math.inf)  # also restores `until`, which `remaining()` reads
            self._middleware_scope = None
        held = self.loop.pulse.held_since(began)
        raise CallTimeoutError(self.name, self.id, timeout, held=held, by_middleware=True) from limit.cause

    @contextmanager
    def outside_timeout(self) -> Generator[None]:
        """Suspend the timeout of the middleware during the block, and restart it afterwards."""
        self._away += 1
        self._move_deadline(math.inf)
        try:
            yield
        finally:
            self._away -= 1
            if not self._away and self.policy.timeout is not None:
                self._move_deadline(self.loop.now() + self.policy.timeout)

    def _move_deadline(self, deadline: float) -> None:
        if self._middleware_scope is not None:
            self._middleware_scope.move(deadline)
            self.until = min(_end(self.policy, self._around), deadline)


def _end(policy: CallPolicy, around: BatchContext) -> float:
    """Return the deadline of a call; its budget includes the time in the queue."""
    return around.until if policy.budget is None else min(around.until, around.now + policy.budget)


T = TypeVar("T")

Args = TypeVarTuple("Args")


class Batch(Protocol):
    """Batch, as its calls see it."""

    @property
    def closed(self) -> bool:
        """True if no call and no attempt may start any more."""
        ...

    def start_beside(self, child: ChildFn, grace: float) -> None:
        """Start an additional task in the batch, unless the batch is closed."""
        ...


class CallOptions(NamedTuple):
    """Tool call as an attempt executes it, with its policy and limiters."""

    call: ToolCallLike
    policy: CallPolicy
    limiters: Sequence[Gates]


class SupervisedCall(CallTime, Generic[T]):
    """Tool call of a batch, from the queue to its outcome.

    Args:
        call: the tool call.
        policy: timeout, budget and grace; the limits are in `limiters`.
        limiters: limits to pass before a body starts, narrowest first: a call that waits at a narrow limit must not
            hold a permit of a wide one.
        run: middleware and body of the call; starts bodies only through `attempt`.
        around: context of the batch.
    """

    __slots__ = (
        "_batch",
        "_limiters",
        "_observers",
        "_queue_wait",
        "do_not_cache",
        "ended",
        "error",
        "handled",
        "number",
        "outer",
        "result",
        "resumes",
        "run",
        "running",
        "throttle",
        "waiting",
    )

    def __init__(
        self,
        call: ToolCallLike,
        policy: CallPolicy,
        limiters: Sequence[Gates],
        run: "Callable[[SupervisedCall[T]], Awaitable[T]]",
        around: BatchContext,
    ) -> None:
        super().__init__(call, policy, around)
        self.run = run
        self.result: T | None = None
        self.error: BaseException | None = None
        self.handled: BaseException | None = None
        """Error that was turned into the result, if one was."""
        self.ended = self.do_not_cache = False
        """True after the end of the call; true if the result is meant for the current caller only, not to be stored."""
        self.running = self.waiting = 0
        """Number of running and of queued attempts; a middleware may start several at once."""
        self.resumes: str | None = None
        """Mark that observers left where the call stopped in an earlier run."""
        self.number = next(numbers)
        self.outer: Reporter | None = None
        """Enclosing attempt or call (in its middleware), set when the call begins."""
        self._limiters = limiters
        self._batch: Batch | None = None
        self._observers = around.observers.calls
        self._queue_wait = 0.0  # seconds, over all attempts
        self.throttle: Throttle[_Told] | None = None

    def begin(self, batch: Batch) -> "Callable[[SupervisedCall[T]], Awaitable[T]]":
        """Prepare the call in its own task; return the function that runs it."""
        run = self.run
        del self.run  # a closure that refers to this object: a reference cycle
        self._batch = batch
        # Context variables without reset: the task has a context of its own, which ends with the call.
        current_timed.set(self)
        self.outer = reporter.get()
        reporter.set(self)
        if self._observers:
            around = self._around
            call, description = around.shown(self.call), around.describe(self.name)
            self._tell("begun", self.name, call=call, description=description, resumes=self.resumes)
        return run

    def end(self, result: T) -> None:
        """Record the result, and tell observers."""
        self.result = result
        self.ended = True  # before the event "ended": from now on `report` ignores progress
        self._tell_end(error=self.handled, result=result)
        self.handled = None  # its traceback refers to the frames of this call: a reference cycle

    def as_error(self, exc: BaseException) -> Exception | None:
        """Return an error that may become a message for the model; `None` for exceptions that must propagate."""
        if isinstance(exc, Exception):
            return exc
        return CallCancelledError(self.name, self.id) if self.loop.uncancel_foreign(exc) else None

    def end_with(self, error: BaseException) -> bool:
        """Record the error that ended the call; return `False` for a requested cancellation, which must propagate."""
        by_itself = self.as_error(error)
        if by_itself is None and isinstance(error, self.loop.cancelled_class):
            # `ended` stays False: a drain reports a cancelled call that has begun as unknown.
            self._tell_end(error=error)
            return False
        error = by_itself or error
        self.error = error
        self.ended = True
        self._tell_end(error=error)
        return True

    async def attempt(
        self,
        threads: ThreadPermits | None,
        body: Callable[[Attempt, *Args], Coroutine[Any, Any, R]],
        *args: *Args,
        terms: "CallOptions | None" = None,
    ) -> R:
        """Run a body once: wait for its permits, start it, and cancel it when its timeout is over.

        Args:
            threads: worker threads of the node, for a body that runs in a thread.
            body: takes the attempt, for `Attempt.run_in_thread`, and `args`.
            args: arguments of the body.
            terms: call, policy and limiters, if a middleware has changed them.

        Raises:
            CallRejectedError: if the queue of a limit is full.
            CallTimeoutError: if it took longer than the policy's timeout.
            CallCancelledError: if the body cancelled itself.
        """
        await self._check_open()
        call, policy, limiters = terms or (self.call, self.policy, self._limiters)
        attempt = Attempt(self, call, threads)
        waited = 0.0
        try:
            if limiters or threads is not None:
                waited = await self._enter(attempt, call["name"], limiters)
                await self._check_open()  # the batch may have ended during the wait, and a shield may have hidden it
            # Counted only now: `DeadlineExceededError.started` tells whether any body has begun, and a drain takes
            # the outcome of a call with a running attempt for unknown.
            self.attempts += 1
            self.running += 1
            try:
                attempt.begin(self.attempts)
                if policy.timeout is None and policy.idle_timeout is None and not self._observers:
                    running = body(attempt, *args)
                    del args  # the coroutine has its own reference; thousands of frames wait here
                    return await running
                return await self._observed(attempt, partial(body, attempt, *args), call["name"], policy, waited)
            finally:
                if attempt.number:  # `_observed` has not ended it yet
                    attempt.end()
                self.running -= 1
        except asyncio.CancelledError as exc:
            # A cancellation that nothing requested is an error of the tool: it must not cancel the other calls.
            if not self.loop.cancelled_itself(exc):
                raise
            raise CallCancelledError(call["name"], self.id) from exc
        finally:
            attempt.leave()  # last: the body and its clean-up run while the attempt holds its permits

    async def _check_open(self) -> None:
        """Raise if the call was cancelled or its batch has ended: no body may start then."""
        closed = self._batch is not None and self._batch.closed
        if closed or self.loop.is_cancelled():
            await self.loop.raise_cancelled()
        if closed or is_cleaning_up():
            raise CallCancelledError(self.name, self.id)  # behind a shield, the loop raises no cancellation

    async def _enter(self, attempt: Attempt, tool: str, limiters: Sequence[Gates]) -> float:
        """Wait for the permits; return the seconds of the wait."""
        since = self.loop.now()
        self.waiting += 1
        self._tell("queued", tool)
        try:
            await attempt.enter(limiters)
        except BaseException as exc:
            self._tell("gave_up", tool, error=exc, queue_wait=self.loop.now() - since)
            if isinstance(exc, NoPlaceError):
                raise CallRejectedError(tool, self.id, str(exc)) from None
            raise
        finally:
            self.waiting -= 1
            waited = self.loop.now() - since
            self._queue_wait += waited
        return waited

    async def _observed(
        self,
        attempt: Attempt,
        body: Callable[[], Coroutine[Any, Any, R]],
        tool: str,
        policy: CallPolicy,
        waited: float,
    ) -> R:
        error: BaseException | None = None
        number = attempt.number
        self._tell("started", tool, queue_wait=waited)
        try:
            is_timed = policy.timeout is not None or policy.idle_timeout is not None
            return await (attempt.in_time(body, policy) if is_timed else body())
        except BaseException as exc:
            error = exc
            raise
        finally:
            attempt.end()  # first: it flushes the last progress, which observers expect before the end
            self._tell("attempt_ended", tool, error=error, attempt=number)
            error = None  # its traceback refers to this frame: a reference cycle

    def _tell_end(self, **how: Any) -> None:
        if self.throttle is not None:
            self.throttle.close()  # no progress may follow "ended"
        self._tell("ended", self.name, queue_wait=self._queue_wait, **how)

    @property
    def actor_observers(self) -> tuple[ActorObserver, ...]:
        """Observers of the actors that the call asks."""
        return self._around.observers.actors

    def note(self, what: str, facts: Mapping[str, object]) -> None:
        """Report a decision about the call to its observers."""
        self._tell("noted", self.name, what=what, facts=facts)

    def report(self, progress: Progress, attempt: int | None = None) -> None:
        """Report progress of an attempt, by default of the latest one; from any thread."""
        if self.ended:  # a thread or task that a middleware has left behind may still report
            return
        report_activity()
        if self._observers or self._around.on_progress is not None:
            self._throttled().put((self, progress, attempt or self.attempts))

    def _throttled(self) -> "Throttle[_Told]":
        if (found := self.throttle) is not None:
            return found
        with _one_for_each:  # threads of one call may report for the first time at the same moment
            if self.throttle is None:
                assert self._batch is not None
                self.throttle = Throttle(self.loop, self._batch, _tell_of)
            return self.throttle

    def _tell(self, phase: CallPhase, tool: str, *, attempt: int | None = None, **more: Any) -> None:
        if not self._observers:
            return
        event = CallEvent(
            phase=phase,
            tool=tool,
            call_id=self.id,
            time=self.loop.now(),
            number=self.number,
            batch=self._around.batch,
            attempt=self.attempts if attempt is None else attempt,
            run=self._around.run,
            **more,
        )
        for observer in self._observers:
            observer(event)


_Told = tuple[SupervisedCall[Any], Progress, int]
_one_for_each = threading.Lock()


def _tell_of(told: _Told) -> None:
    call, progress, attempt = told
    message, facts = progress.message, progress.facts
    call._tell("noted", call.name, attempt=attempt, what="progress", facts=facts, message=message)
    if call._around.on_progress is not None:
        call._around.on_progress(call.call, progress)


@contextmanager
def waiting() -> Generator[None]:
    """Suspend the call's timeout during the block; for a middleware that waits on purpose."""
    call = current_call()
    with nullcontext() if call is None else call.outside_timeout():
        yield


def current_call() -> SupervisedCall[Any] | None:
    """Return the call that the running code belongs to; `None` outside of a call and in an engine's worker."""
    here = reporter.get()
    found = here.owner if isinstance(here, Attempt) else here
    return found if isinstance(found, SupervisedCall) else None


def note(what: str, **facts: object) -> None:
    """Report a middleware's decision to the observers of the running call; do nothing outside of a call.

    Args:
        what: the decision in one word, such as "retry".
        facts: details, such as `pause=0.5` (seconds). Never an argument or a result, which may be confidential:
            telemetry sends notes out of the process.
    """
    call = current_call()
    if call is not None:
        call.note(what, facts)


def _of_attempt(variables: Mapping[str, Any]) -> Holder:
    tool, supervised = variables["call"]["name"], variables["self"]
    return Holder(tool, f"tool {tool!r} (call {supervised.id!r})")


marks[SupervisedCall.attempt.__code__] = _of_attempt
