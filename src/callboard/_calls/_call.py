"""One supervised call: its attempts, their places and timeouts, its outcome.

Knows no LangChain: a call is a mapping, its body an async function, its result any object.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, TypeVarTuple

from callboard._actor_events import ActorObserver
from callboard._call_events import CallEvent, CallPhase
from callboard._calls._attempt import Attempt, ThreadPlaces
from callboard._calls._call_time import CallTime
from callboard._calls._context import Surroundings
from callboard._calls._limits import Gates, NoPlaceError
from callboard._calls._observers import numbers
from callboard._calls._progress import Progress, Reporter, reporter
from callboard._calls._throttle import Throttle
from callboard._loops._deadline import current_timed, is_cleaning_up
from callboard._loops._idle import alive
from callboard._loops._protocol import ChildFn
from callboard._loops._watchdog import Holder, marks
from callboard._types import CallPolicy, ToolCallLike
from callboard.exceptions import CallCancelledError, CallRejectedError

T = TypeVar("T")
R = TypeVar("R")
Args = TypeVarTuple("Args")


class Batch(Protocol):
    """What a call has to know of those that it ends with."""

    @property
    def closed(self) -> bool:
        """Whether nothing may start any more."""
        ...

    def start_beside(self, child: ChildFn, grace: float) -> None:
        """Start something beside the calls, unless the batch is closed."""
        ...


class Terms(NamedTuple):
    """On which terms the attempts of a call run: its policy, and the gates of its limits."""

    call: ToolCallLike
    policy: CallPolicy
    limiters: Sequence[Gates]


class SupervisedCall(CallTime, Generic[T]):
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
        "_batch",
        "_limiters",
        "_observers",
        "_queue_wait",
        "ended",
        "error",
        "handled",
        "is_for_once",
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
        around: Surroundings,
    ) -> None:
        super().__init__(call, policy, around)
        self.run = run
        self.result: T | None = None
        self.error: BaseException | None = None
        self.handled: BaseException | None = None
        """The error that the result stands for, where one became a result."""
        self.ended = self.is_for_once = False
        """Whether it has; whether its result says something that is to be said to its caller, and this once."""
        self.running = self.waiting = 0
        """How many of its attempts do; a middleware may start several at once."""
        self.resumes: str | None = None
        """What was left where the call stopped in an earlier run."""
        self.number = next(numbers)
        self.outer: Reporter | None = None
        """What the call runs within, once it has begun: an attempt of another call, or another call's middleware."""
        self._limiters = limiters
        self._batch: Batch | None = None
        self._observers = around.observers.calls
        self._queue_wait = 0.0
        self.throttle: Throttle[_Told] | None = None

    def begin(self, batch: Batch) -> "Callable[[SupervisedCall[T]], Awaitable[T]]":
        """Note that the call is in its task now; returns what to do with it, which is not kept: it leads back here."""
        run = self.run
        del self.run
        self._batch = batch
        current_timed.set(self)
        self.outer = reporter.get()
        reporter.set(self)
        if self._observers:
            around = self._around
            call, description = around.shown(self.call), around.describe(self.name)
            self._tell("begun", self.name, call=call, description=description, resumes=self.resumes)
        return run

    def end(self, result: T) -> None:
        self.result = result
        self.ended = True
        self._tell_end(error=self.handled, result=result)
        self.handled = None  # whose traceback leads here

    def as_error(self, exc: BaseException) -> Exception | None:
        """What ended the call, as an error that may become a message; `None` for what has to go on."""
        if isinstance(exc, Exception):
            return exc
        return CallCancelledError(self.name, self.id) if self.loop.cancelled_by_stranger(exc) else None

    def end_with(self, error: BaseException) -> bool:
        """Note what the call ended with; False for a cancellation that somebody asked for."""
        by_itself = self.as_error(error)
        if by_itself is None and isinstance(error, self.loop.cancelled_class):
            self._tell_end(error=error)
            return False
        error = by_itself or error
        self.error = error
        self.ended = True
        self._tell_end(error=error)
        return True

    async def attempt(
        self,
        threads: ThreadPlaces | None,
        body: Callable[[Attempt, *Args], Coroutine[Any, Any, R]],
        *args: *Args,
        terms: "Terms | None" = None,
    ) -> R:
        """Run a body once: wait for its places, start it, end it when its timeout is over.

        Args:
            threads: where a body that runs in a thread finds its thread.
            body: takes the attempt, for `Attempt.run_in_thread`, and `args`.
            args: for the body.
            terms: what the attempt is held to, if that is not what the call is.

        Raises:
            CallRejectedError: if there is no place for it.
            CallTimeoutError: if it took longer than the policy's timeout.
            CallCancelledError: if it cancelled itself.
        """
        await self._check_open()
        call, policy, limiters = terms or (self.call, self.policy, self._limiters)
        attempt = Attempt(self, call, threads)
        waited = 0.0
        try:
            if limiters or threads is not None:
                waited = await self._enter(attempt, call["name"], limiters)
                await self._check_open()  # much may have happened meanwhile, and a shield may have hidden it
            self.attempts += 1
            self.running += 1
            try:
                attempt.begin(self.attempts)
                if policy.timeout is None and policy.idle_timeout is None and not self._observers:
                    running = body(attempt, *args)
                    del args  # they would weigh more while the body waits
                    return await running
                return await self._observed(attempt, partial(body, attempt, *args), call["name"], policy, waited)
            finally:
                if attempt.number:
                    attempt.end()
                self.running -= 1
        except asyncio.CancelledError as exc:
            if not self.loop.cancelled_itself(exc):
                raise
            raise CallCancelledError(call["name"], self.id) from exc
        finally:
            attempt.leave()

    async def _check_open(self) -> None:
        """Let no body start any more when the call has been cancelled, or its batch has ended."""
        closed = self._batch is not None and self._batch.closed
        if closed or self.loop.is_cancelled():
            await self.loop.raise_cancelled()
        if closed or is_cleaning_up():
            raise CallCancelledError(self.name, self.id)  # behind a shield

    async def _enter(self, attempt: Attempt, tool: str, limiters: Sequence[Gates]) -> float:
        """Wait for a place; returns for how many seconds."""
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
            attempt.end()
            self._tell("attempt_ended", tool, error=error, attempt=number)
            error = None  # whose traceback leads here

    def _tell_end(self, **how: Any) -> None:
        if self.throttle is not None:
            self.throttle.close()
        self._tell("ended", self.name, queue_wait=self._queue_wait, **how)

    @property
    def actor_observers(self) -> tuple[ActorObserver, ...]:
        """Who is told of the actors that it asks."""
        return self._around.observers.actors

    def note(self, what: str, facts: Mapping[str, object]) -> None:
        """Tell observers what was decided about the call."""
        self._tell("noted", self.name, what=what, facts=facts)

    def report(self, progress: Progress, attempt: int | None = None) -> None:
        """Take in what is said of the progress of an attempt, by default of the latest; from any thread."""
        if self.ended:
            return
        alive()
        if self._observers or self._around.on_progress is not None:
            self._throttled().put((self, progress, attempt or self.attempts))

    def _throttled(self) -> "Throttle[_Told]":
        if (found := self.throttle) is not None:
            return found
        with _one_for_each:
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
    """Say in a middleware that it waits on purpose, for as long as it takes; its call's timeout is not for that."""
    call = current_call()
    with nullcontext() if call is None else call.outside_timeout():
        yield


def current_call() -> SupervisedCall[Any] | None:
    """The call that the code which runs here belongs to; none, in a worker of an engine."""
    here = reporter.get()
    found = here.owner if isinstance(here, Attempt) else here
    return found if isinstance(found, SupervisedCall) else None


def note(what: str, **facts: object) -> None:
    """Tell those who observe the running call what a middleware decided; outside a call, nobody.

    Args:
        what: in one word, such as "retry".
        facts: more about it, such as `pause=0.5` (seconds). Never an argument or a result: what is noted
            leaves the process.
    """
    call = current_call()
    if call is not None:
        call.note(what, facts)


def _of_attempt(variables: Mapping[str, Any]) -> Holder:
    tool, supervised = variables["call"]["name"], variables["self"]
    return Holder(tool, f"tool {tool!r} (call {supervised.id!r})")


marks[SupervisedCall.attempt.__code__] = _of_attempt
