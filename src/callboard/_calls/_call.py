"""Supervised call: runs the attempts of one tool call within its time, and records the outcome.

A call has a time budget as a whole. The middleware around its attempts has a timeout of its own.
Independent of LangChain: a call is a mapping, its body an async function, its result any object.
"""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar, TypeVarTuple

from callboard._calls._attempt import Attempt
from callboard._calls._call_keys import KeyScope
from callboard._calls._gate import NoPlaceError
from callboard._calls._limits import AnyLimiter
from callboard._calls._observers import Observers, current_observers, current_run, note_of_run, numbers
from callboard._calls._progress import Host, OnProgress, Progress, Reporter, Throttle, reporter
from callboard._calls._thread_pool import ThreadPermits
from callboard._loops._current import current_loop
from callboard._loops._deadline import (
    DEFAULT_GRACE,
    INSTANT,
    TimeLimit,
    TimeLimits,
    TimeoutClock,
    active_time_limits,
    cleaning_up,
)
from callboard._loops._idle import idle_scope, is_postponed_by_activity, report_activity
from callboard._loops._protocol import ChildScope, EventLoop, Wakeup
from callboard._loops._watchdog import LoopHolder, mark
from callboard._records._events import ActorObserver, CallEvent, CallPhase, CallPlace, Observer, RunInfo
from callboard._records._policies import CallContext, CallPolicy, ToolCallLike
from callboard._records._reports import LiveCall
from callboard._web._retry_after import retry_after
from callboard.exceptions import CallCancelledError, CallRejectedError, DeadlineExceededError

T = TypeVar("T")
R = TypeVar("R")
Args = TypeVarTuple("Args")


class BatchContext(NamedTuple):
    """Event loop, deadline, agent run and observers of a batch of tool calls; shared by all calls of the batch.

    A named tuple, because one is made for each batch, and a frozen dataclass takes four times as long to create.
    """

    loop: EventLoop
    now: float
    until: float
    """Deadline of the code that runs the batch, in loop time. That code cancels the calls; the batch does not."""
    observers: Observers
    run: RunInfo | None
    batch: int
    describe: Callable[[str], str | None] = lambda _: None
    """Function that takes the name of a tool and returns the tool's description for observers."""
    redact_call: Callable[[ToolCallLike], ToolCallLike] = lambda call: call
    """Function that takes a call and returns the version of the call that observers may see."""
    on_progress: OnProgress | None = None
    """Callback for the progress reports of the calls, run in the event loop's thread; `None` without one."""


def create_batch_context(on_progress: OnProgress | None = None) -> BatchContext:
    """Return the event loop, deadline, agent run and observers of a batch that the calling task starts."""
    loop = current_loop()
    now = loop.now()
    outer = active_time_limits.get()
    until = loop.deadline()
    # An idle deadline is no deadline for the calls: each report of activity moves it.
    if until != math.inf and is_postponed_by_activity(until, loop):
        until = math.inf
    # The enclosing call may run in another loop with another clock: only the remaining seconds can be compared.
    if outer is not None:
        until = min(until, now + outer.until - outer.loop.now())
    observers = current_observers()
    return BatchContext(loop, now, until, observers, current_run.get(), next(numbers), on_progress=on_progress)


class CallOptions(NamedTuple):
    """Tool call, policy and limiters of one attempt, which may differ from the original ones of the call."""

    call: ToolCallLike
    policy: CallPolicy
    limiters: Sequence[AnyLimiter]
    context: Callable[[], CallContext] = CallContext
    """Function that makes the context for the key functions of the limiters."""


CallStage = Literal["ready", "open", "decided", "over"]
"""Stage of a call, for its cancellation by `cancel()`. `ready`: its code has not begun. `open`: its code runs, and may
be cancelled. `decided`: its result or error is known, and becomes a message. `over`: its task has ended."""


@dataclass(slots=True, eq=False, repr=False)
class SupervisedCall(Generic[T]):
    """Tool call of a batch, from the queue to its outcome; a subclass implements `run`, which executes the call."""

    _batch_context: BatchContext
    call: ToolCallLike
    policy: CallPolicy
    _limiters: Sequence[AnyLimiter]
    """Narrowest first: a call that waits at a narrow limit must not hold a permit of a wide one."""
    _context: Callable[[], CallContext] = CallContext
    loop: EventLoop = field(init=False)
    time_limits: TimeLimits = field(init=False)
    """Deadline and grace of the call outside of its attempts."""
    _observers: tuple[Observer, ...] = field(init=False)
    number: int = field(default_factory=numbers.__next__)
    attempts: int = 0
    """Number of attempts whose bodies have begun."""
    running: int = 0
    """Number of attempts whose bodies run."""
    waiting: int = 0
    """Number of attempts that wait for a permit."""
    _middleware_clock: TimeoutClock | None = None
    """Clock of the middleware's timeout while the middleware runs; `None` without a timeout."""
    result: T | None = None
    error: BaseException | None = None
    handled_error: BaseException | None = None
    """Error that the last attempt, or the end of the call, turned into its message; `None` without one."""
    ended: bool = False
    do_not_cache: bool = False
    """True if no other call may have the result."""
    only_for_thread: bool = False
    """True if no call of another thread may have the result."""
    outer: Reporter | None = None
    """Enclosing attempt, or enclosing call if its middleware runs this call; set when this call begins."""
    _batch: Host | None = None
    _queue_wait: float = 0.0
    """Seconds, over all attempts."""
    throttle: "Throttle[_Report] | None" = None
    _stage: CallStage = "ready"
    _scope: ChildScope | None = None
    """Scope of the call's task, while it runs."""
    cancel_reason: str | None = None
    """Reason that was given to `cancel()` for this call alone; `None` if it was not cancelled so."""
    _end_wakeups: tuple[Wakeup, ...] = ()
    """Wakeups of the tasks that wait for the end of the call, after a `cancel()`."""
    _queued_attempt: Attempt | None = None
    """Latest attempt that waits for its permits; `None` if no attempt waits."""
    _latest_progress: str = ""

    def __post_init__(self) -> None:
        context, budget, grace = self._batch_context, self.policy.budget, self.policy.grace
        self.loop, self._observers = context.loop, context.observers.calls
        until = context.until if budget is None else min(context.until, context.now + budget)
        self.time_limits = TimeLimits(context.loop, until, DEFAULT_GRACE if grace is None else grace)

    @property
    def name(self) -> str:
        return str(self.call["name"])

    @property
    def id(self) -> str | None:
        return self.call.get("id")

    @property
    def performer(self) -> "SupervisedCall[Any]":
        """Call that runs the body: this one, unless it only waits for another one."""
        return self

    @property
    def thread_id(self) -> str | None:
        """Conversation of the call; `None` without one."""
        return None

    @property
    def key_scope(self) -> KeyScope | None:
        """Source of the unique name from which the call's idempotency key is made."""
        return None

    @property
    def resumed_mark(self) -> str | None:
        """Mark (such as a trace id) that an observer left on the call which this call continues; `None` without one."""
        return None

    def arguments_of(self, call: ToolCallLike) -> Mapping[str, object]:
        """Return the arguments of `call`, which is this call or a changed copy, with defaults for missing ones."""
        arguments: Mapping[str, object] = call["args"]
        return arguments

    @property
    def loop_holder(self) -> LoopHolder:
        """Description of the call's middleware for the warning about a blocked event loop."""
        return LoopHolder(f"around {self.name}", f"the middleware around tool {self.name!r} (call {self.id!r})")

    async def within_budget(self, run: Callable[[], Awaitable[R]], *, at_least: float = 0.0) -> R:
        """Await `run()`; raise `DeadlineExceededError` if the call, including its waits, exceeds its time budget."""
        budget = self.policy.budget
        if budget is None:
            return await run()
        # `at_least` is for a call whose budget was spent in the queue.
        deadline = max(self._batch_context.now + budget, self.loop.now() + at_least)
        with (limit := TimeLimit(self.loop.scope(deadline, self.time_limits.grace))):
            return await run()
        # Reached only if the scope ended the block.
        raise DeadlineExceededError(self.name, self.id, budget, started=self.attempts > 0) from limit.cause

    def budget_is_spent(self) -> bool:
        """Return whether the call's time budget is spent; for code that was cancelled inside `within_budget`."""
        budget = self.policy.budget
        # The deadline may fire a fraction of a microsecond early: clocks differ in the last digits.
        return budget is not None and self.loop.now() >= self._batch_context.now + budget - INSTANT

    async def within_timeout(self, middleware: Callable[[], Awaitable[R]], *, at_least: float = 0.0) -> R:
        """Run the call's middleware; raise `CallTimeoutError` if the middleware's own code exceeds the timeout."""
        timeout = self.policy.timeout
        # A budget bounds the middleware, too.
        if timeout is None or self.policy.budget is not None:
            return await middleware()
        clock = TimeoutClock(self.loop, self.time_limits, timeout=max(timeout, at_least), idle=None)
        self._middleware_clock = clock
        try:
            return await clock.bound(middleware(), self.name, self.id, by_middleware=True)
        finally:
            self._middleware_clock = None

    @contextmanager
    def outside_timeout(self) -> Generator[None]:
        """Suspend the timeout of the call's middleware during a `with` block, and restart it from zero afterwards."""
        clock = self._middleware_clock
        if clock is not None:
            clock.suspend()
        try:
            yield
        finally:
            if clock is not None:
                clock.resume()

    def run(self) -> Coroutine[Any, Any, T]:
        """Run the call in its own task, and return its result; each subclass overrides this."""
        raise NotImplementedError

    def begin_task(self, batch: Host, scope: ChildScope) -> None:
        """Prepare the call in its own task: attach it to the batch, and tell observers that it begins."""
        self._batch, self._scope = batch, scope
        # Context variables without reset: the task has a context of its own, which ends with the call.
        active_time_limits.set(self.time_limits)
        self.outer = reporter.get()
        reporter.set(self)
        note_of_run.set(None)
        if self._observers:
            context = self._batch_context
            call, description = context.redact_call(self.call), context.describe(self.name)
            self._notify_observers("begun", self.name, call=call, description=description, resumes=self.resumed_mark)

    def end_with_result(self, result: T) -> None:
        """Record the result of the call, and tell observers that the call has ended."""
        self.result = result
        self.ended = True  # before the event "ended": from now on `report` ignores progress
        if self._observers or self.throttle is not None:
            self._notify_end(error=self.handled_error, result=result)
        self.handled_error = None  # its traceback refers to the frames of this call: a reference cycle

    def as_error(self, exc: BaseException) -> Exception | None:
        """Return `exc`, or `CallCancelledError` for an unrequested cancellation; `None` if `exc` must propagate."""
        if isinstance(exc, Exception):
            return exc
        return self.cancelled_error() if self.loop.uncancel_foreign(exc) else None

    def cancelled_error(self) -> CallCancelledError:
        """Return the error of a call that was cancelled alone: by `cancel()`, or by itself."""
        return CallCancelledError(
            self.name,
            self.id,
            reason=self.cancel_reason,
            started=self.attempts > 0,
            is_repeatable=bool(self.policy.idempotent),
        )

    def end_with_error(self, error: BaseException) -> bool:
        """Record the error that ended the call; return `False` for a requested cancellation, which must propagate."""
        by_itself = self.as_error(error)
        if by_itself is None and isinstance(error, self.loop.cancelled_class):
            # `ended` stays False: a drain reports a cancelled call that has begun as unknown.
            self._notify_end(error=error)
            return False
        error = by_itself or error
        self.error = error
        self.ended = True
        self._notify_end(error=error)
        return True

    # Cancellation of this call alone. The methods of this part run in the thread of the call's event loop, except
    # `describe`.

    def begin_code(self) -> None:
        """Record that the code of the call begins; raise `CallCancelledError` if the call was cancelled before."""
        self._stage = "open"
        if self.cancel_reason is not None:
            raise self.cancelled_error()

    def settle_outcome(self, error: BaseException | None = None) -> BaseException | None:
        """Record that the code of the call has ended, with `error` or with a result; return the error of the call.

        After a `cancel()`, the error is a `CallCancelledError`, unless the code has ended with a result.
        """
        if self._stage != "open":
            return error
        self._stage = "decided"
        if self.cancel_reason is None:
            return error
        if self._batch is not None and self._batch.closed:
            self.cancel_reason = None  # the whole batch ends, and with it the call, without a message of its own
            return error
        assert self._scope is not None
        cause = error if isinstance(error, Exception) else None
        try:
            was_cancelled = self._scope.end_cancellation(error)
        except Exception as rest:  # trio removes its cancellation from an exception group, and raises the other errors
            was_cancelled, cause = True, rest
        if error is None and self.handled_error is None:
            self.cancel_reason = None  # the body has finished in spite of the cancellation: its result is not lost
            return None
        if not was_cancelled and cause is None and error is not None:
            return error  # such as Ctrl-C
        cancelled_error = self.cancelled_error()
        cancelled_error.__cause__ = cause
        return cancelled_error

    def cancel(self, reason: str, wakeup: Wakeup) -> None:
        """Cancel this call alone, and set `wakeup` when nothing of it runs any more."""
        stage = self._stage
        if self.cancel_reason is None and stage in ("ready", "open"):
            self.cancel_reason = reason
            if self._scope is not None and stage == "open":
                self._scope.cancel_alone()
        # A call that has not begun will never begin. Its task may wait for the caller of `cancel()`, such as for the
        # reader of `as_completed()`.
        if stage in ("ready", "over"):
            wakeup.set()
        else:
            self._end_wakeups = (*self._end_wakeups, wakeup)

    def record_task_end(self) -> None:
        """Record that nothing of the call runs any more, and wake the tasks that wait for it."""
        self._stage, self._scope = "over", None
        for wakeup in self._end_wakeups:
            wakeup.set()

    @property
    def is_over(self) -> bool:
        """True if nothing of the call runs any more."""
        return self._stage == "over"

    def describe(self) -> LiveCall:
        """Return the present state of the call; may be called from any thread, while the call goes on."""
        attempt, is_running = self._queued_attempt, self.running > 0
        place: CallPlace = "running" if is_running else "between" if attempt is None else "waiting"
        return LiveCall(
            tool=self.name,
            call_id=self.id,
            thread_id=self.thread_id,
            place=place,
            attempt=self.attempts,
            seconds=max(0.0, self.loop.now() - self._batch_context.now),
            limit=attempt.awaited_limit if place == "waiting" and attempt is not None else None,
            progress=self._latest_progress,
        )

    async def attempt(
        self,
        threads: ThreadPermits | None,
        body: Callable[[Attempt, *Args], Coroutine[Any, Any, R]],
        *args: *Args,
        terms: "CallOptions | None" = None,
    ) -> R:
        """Make one attempt: wait for the call's permits, and run the tool's function within its timeouts."""
        if self._refuses_attempts():
            await self._raise_attempt_refusal()
        call, policy, limiters, context = terms or (self.call, self.policy, self._limiters, self._context)
        attempt = Attempt(self, call, threads)
        waited = 0.0
        clock = self._middleware_clock
        if clock is not None:
            clock.suspend()  # the time of an attempt, and of its waits, is not the middleware's own
        try:
            if limiters or threads is not None:
                waited = await self._acquire_permits(attempt, limiters, context)
                if (
                    self._refuses_attempts()
                ):  # the batch may have ended during the wait, and a shield may have hidden it
                    await self._raise_attempt_refusal()
            # Counted only now: `DeadlineExceededError.started` tells whether any body has begun, and a drain takes
            # the outcome of a call with a running attempt for unknown.
            self.attempts += 1
            self.running += 1
            try:
                if idle_scope.get() is not None:
                    report_activity()  # the start and the end of a nested call are activity of the enclosing blocks
                attempt.number = self.attempts
                reporter.set(attempt)
                running = body(attempt, *args)
                if policy.timeout is not None or policy.idle_timeout is not None:
                    running = attempt.in_time(running, policy)
                del args  # the coroutine has its own reference; thousands of frames wait here
                return await (
                    self._run_observed(attempt, running, call["name"], waited) if self._observers else running
                )
            except Exception as error:
                # The service of the tool says so to one call, and means all: the others wait in the queue.
                if policy.limit is not None and (pause := retry_after(error)) > 0:
                    limiters[0].gate(call, self.loop, context).pause(self.loop, min(pause, _LONGEST_PAUSE))
                raise
            finally:
                if attempt.number:  # `_run_observed` has not ended it yet
                    attempt.end_body()
                self.running -= 1
        except asyncio.CancelledError as exc:
            # A cancellation that nothing requested is an error of the tool: it must not cancel the other calls.
            if not self.loop.has_cancelled_itself(exc):
                raise
            raise CallCancelledError(call["name"], self.id) from exc
        finally:
            if attempt.permits is not None:
                attempt.release_permits()  # not earlier: the body and its clean-up run while it holds its permits
            if clock is not None:
                clock.resume()

    def _refuses_attempts(self) -> bool:
        """Return whether the call was cancelled or its batch has ended, so that no further attempt may start."""
        return self._is_closed() or self.loop.is_cancelled() or cleaning_up.get()

    def _is_closed(self) -> bool:
        """Return whether the batch has ended or was cancelled, or `cancel()` was called for this call."""
        return self.cancel_reason is not None or (self._batch is not None and self._batch.closed)

    async def _raise_attempt_refusal(self) -> None:
        """Raise the call's pending cancellation, or `CallCancelledError` if the code is shielded from cancellation."""
        closed = self._is_closed()
        if closed or self.loop.is_cancelled():
            await self.loop.raise_cancelled()
        if closed or cleaning_up.get():
            raise CallCancelledError(self.name, self.id)  # behind a shield, the loop raises no cancellation

    async def _acquire_permits(
        self, attempt: Attempt, limiters: Sequence[AnyLimiter], context: Callable[[], CallContext]
    ) -> float:
        """Wait for the attempt's permits at all limits; return the duration of the wait in seconds."""
        since, tool = self.loop.now(), attempt.tool
        self.waiting += 1
        self._queued_attempt = attempt
        self._notify_observers("queued", tool)
        try:
            await attempt.acquire_permits(limiters, context)
        except BaseException as exc:
            self._notify_observers("gave_up", tool, error=exc, queue_wait=self.loop.now() - since)
            if isinstance(exc, NoPlaceError):
                raise CallRejectedError(tool, self.id, str(exc)) from None
            raise
        finally:
            self.waiting -= 1
            if self._queued_attempt is attempt:
                self._queued_attempt = None
            waited = self.loop.now() - since
            self._queue_wait += waited
        return waited

    async def _run_observed(self, attempt: Attempt, running: Coroutine[Any, Any, R], tool: str, waited: float) -> R:
        error: BaseException | None = None
        number = attempt.number
        self._notify_observers("started", tool, queue_wait=waited)
        try:
            return await running
        except BaseException as exc:
            error = exc
            raise
        finally:
            attempt.end_body()  # first: it flushes the last progress, which observers expect before the end
            self._notify_observers("attempt_ended", tool, error=error, attempt=number)
            error = None  # its traceback refers to this frame: a reference cycle

    def _notify_end(self, **outcome: Any) -> None:
        if self.throttle is not None:
            self.throttle.close()  # no progress may follow "ended"
        self._notify_observers("ended", self.name, queue_wait=self._queue_wait, **outcome)

    @property
    def actor_observers(self) -> tuple[ActorObserver, ...]:
        """Observers of the actors to which the call sends messages."""
        return self._batch_context.observers.actors

    def note(self, decision: str, facts: Mapping[str, object]) -> None:
        """Report a decision about the call, such as a retry, to its observers."""
        self._notify_observers("noted", self.name, note=decision, facts=facts)

    def report(self, progress: Progress, attempt: int | None = None) -> None:
        """Report progress of an attempt, by default of the latest attempt; may be called from any thread."""
        if self.ended or self.is_over:  # a thread or task that a middleware has left behind may still report
            return
        report_activity()
        self._latest_progress = progress.message
        if self._observers or self._batch_context.on_progress is not None:
            if self.throttle is None:
                with _first_report:  # threads of one call may report for the first time at the same moment
                    if self.throttle is None:
                        assert self._batch is not None
                        self.throttle = Throttle(self.loop, self._batch, _deliver_progress)
            self.throttle.put((self, progress, attempt or self.attempts))

    def _notify_observers(self, phase: CallPhase, tool: str, *, attempt: int | None = None, **details: Any) -> None:
        if not self._observers:
            return
        event = CallEvent(
            phase=phase,
            tool=tool,
            call_id=self.id,
            time=self.loop.now(),
            number=self.number,
            batch=self._batch_context.batch,
            attempt=self.attempts if attempt is None else attempt,
            run=self._batch_context.run,
            **details,
        )
        for observer in self._observers:
            observer(event)


mark(SupervisedCall.attempt, Attempt)

_Report = tuple[SupervisedCall[Any], Progress, int]
_first_report = threading.Lock()

_LONGEST_PAUSE = 60.0
"""Most seconds for which a service may stop the calls of a limit at once: it may be hostile, or have a wrong clock."""


def _deliver_progress(report: _Report) -> None:
    call, progress, attempt = report
    context, message = call._batch_context, progress.message
    if call._observers and message:  # as confidential as the arguments
        arguments: object = context.redact_call({**call.call, "args": {"message": message}})["args"]
        message = str(arguments.get("message", "")) if isinstance(arguments, Mapping) else ""
    call._notify_observers("noted", call.name, attempt=attempt, note="progress", facts=progress.facts, message=message)
    if context.on_progress is not None:
        context.on_progress(call.call, progress)


@contextmanager
def waiting() -> Generator[None]:
    """Suspend the middleware's timeout during a `with` block in which a middleware waits deliberately."""
    call = current_call()
    with nullcontext() if call is None else call.outside_timeout():
        yield


def current_call() -> SupervisedCall[Any] | None:
    """Return the call to which the running code belongs; `None` outside of a call and in an engine's worker."""
    supervised = reporter.get()
    call = supervised.owner if isinstance(supervised, Attempt) else supervised
    return call if isinstance(call, SupervisedCall) else None


def note(decision: str, **facts: object) -> None:
    """Report a middleware's decision to the observers of the running call, or of the run whose model is asked.

    Do nothing elsewhere.

    Args:
        decision: the decision in one word, such as "retry".
        facts: details, such as `pause=0.5` (seconds). Never an argument or a result, which may be confidential:
            telemetry sends notes out of the process.
    """
    if (tell := note_of_run.get()) is not None:
        tell(decision, facts)
    elif (call := current_call()) is not None:
        call.note(decision, facts)


def own_attempt(tool: str) -> Attempt | None:
    """Return the attempt that the running code belongs to if it is an attempt of this tool; otherwise `None`."""
    attempt = reporter.get()
    return attempt if isinstance(attempt, Attempt) and attempt.tool == tool else None
