"""Attempt of a call: one execution of the body, with permits, worker thread and timeouts.

The timeouts are suspended while the body waits for its turn in an engine.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from callboard._calls._call_keys import KeyParts, KeyScope, key_of, key_parts_of
from callboard._calls._limits import AnyLimiter, Limiter
from callboard._calls._permits import Permits
from callboard._calls._progress import Progress, Reporter, Throttle, reporter
from callboard._calls._thread_pool import ThreadPermits
from callboard._loops._deadline import TimeLimits, TimeoutClock
from callboard._loops._idle import idle_scope, report_activity
from callboard._loops._protocol import EventLoop
from callboard._loops._threads import run_in_thread
from callboard._loops._watchdog import LoopHolder
from callboard._records._policies import CallContext, CallPolicy, ToolCallLike

T = TypeVar("T")


class AttemptedCall(Protocol):
    """Protocol of `SupervisedCall`, for its attempts. An import of `SupervisedCall` itself would be circular."""

    loop: EventLoop
    time_limits: TimeLimits
    outer: Reporter | None
    throttle: Throttle[Any] | None

    @property
    def id(self) -> str | None:
        """Id of the tool call."""
        ...

    @property
    def key_scope(self) -> KeyScope | None:
        """Source of the unique name from which the call's idempotency key is made."""
        ...

    def arguments_of(self, call: ToolCallLike) -> Mapping[str, object]:
        """Return the arguments of `call`, which is this call or a changed copy, with defaults for missing ones."""
        ...

    def report(self, progress: Progress, attempt: int | None = None) -> None:
        """Report progress of an attempt."""
        ...

    def note(self, decision: str, facts: Mapping[str, object]) -> None:
        """Report a decision about the call to its observers."""
        ...


@dataclass(slots=True, eq=False, repr=False)
class Attempt:
    """Single attempt of a call: one execution of the tool, with permits, worker thread and time limits."""

    owner: AttemptedCall
    call: ToolCallLike
    """Tool call as this attempt executes it, without injected arguments."""
    _threads: ThreadPermits | None
    number: int = 0
    """Number of the attempt within its call while the body runs; 0 before and after."""
    clock: TimeoutClock | None = None
    """Clock of the body's timeouts while the body runs; `None` for a body without timeouts."""
    permits: Permits | None = None
    """Permits at the limits of the call; `None` without limits."""
    _thread_limiter: Limiter | None = None
    _key: str | None = None
    """Idempotency key, once it is known."""
    _is_handed_over: bool = False
    """True once an abandoned thread is responsible for releasing the permits."""

    @property
    def tool(self) -> str:
        """Name of the tool that the attempt runs."""
        return str(self.call["name"])

    @property
    def title(self) -> str:
        """Name of the tool and id of the call, as text for errors."""
        return f"{self.tool!r} (call {self.owner.id!r})"

    @property
    def awaited_limit(self) -> str | None:
        """Name of the limit for which the attempt waits; `None` if it waits for none."""
        queue = None if self.permits is None else self.permits.awaited_queue
        return None if queue is None else queue.title.removeprefix("the queue of ")

    @property
    def loop_holder(self) -> LoopHolder:
        """Description of the tool for the warning about a blocked event loop."""
        return LoopHolder(self.tool, f"tool {self.title}")

    def end_body(self) -> None:
        """Record that the tool's function has ended."""
        self.number = 0  # from now on `report` ignores a thread or a task that the body has left behind
        reporter.set(self.owner)
        if self.owner.throttle is not None:
            self.owner.throttle.flush()
        if idle_scope.get() is not None:
            report_activity()

    def report(self, progress: Progress) -> None:
        """Report progress of the tool's function; do nothing after its end. May be called from any thread."""
        if number := self.number:  # read once: the loop may set it to 0 meanwhile
            self.owner.report(progress, number)

    def in_time(self, running: Awaitable[T], policy: CallPolicy) -> Coroutine[Any, Any, T]:
        """Run the tool's function; raise `CallTimeoutError` if it exceeds the timeout or idle timeout of the policy."""
        owner = self.owner
        self.clock = TimeoutClock(owner.loop, owner.time_limits, timeout=policy.timeout, idle=policy.idle_timeout)
        return self.clock.bound(running, self.tool, owner.id)

    def suspend_timeouts(self) -> TimeoutClock | None:
        """Suspend any timeouts until an engine starts the tool's function; return the clock, which restarts them."""
        if self.clock is not None:
            self.clock.suspend()
        return self.clock

    async def run_in_thread(self, fn: Callable[[], T]) -> T:
        """Run a tool's sync function in a worker thread; the permits are held until the thread has really ended."""
        name = f"tool {self.title}"
        if self._threads is None:
            return await run_in_thread(self.owner.loop, fn, name, self)
        # Tools that `fn` runs and waits for use the thread limit one level deeper, or they could wait for `fn`.
        with self._threads.limiters.below():
            return await run_in_thread(self.owner.loop, fn, name, self, order=self._threads.order)

    def acquire_permits(
        self, limiters: Sequence[AnyLimiter], context: Callable[[], CallContext]
    ) -> Coroutine[Any, Any, None]:
        """Acquire a permit at every limiter, in order; raise `NoPlaceError` if a queue is full."""
        if self._threads is not None:
            self._thread_limiter = self._threads.limiters.here()
            limiters = (*limiters, self._thread_limiter)
        self.permits = Permits(self.tool, self.owner.id, self.owner.loop, tuple(self._enclosing_permits()))
        return self.permits.acquire(self.call, limiters, context, self._threads)

    def _enclosing_permits(self) -> Iterator[Permits]:
        """Yield the permits of the attempts that enclose this one, the nearest first."""
        outer = self.owner.outer
        while outer is not None:
            if not isinstance(outer, Attempt):
                outer = getattr(outer, "outer", None)  # a call, if its middleware runs this attempt's call
                continue
            if outer.permits is not None:
                yield outer.permits
            outer = outer.owner.outer

    @property
    def idempotency_key(self) -> str | None:
        """Idempotency key of the call; `None` for a call without a unique name."""
        if self._key is None and (scope := self.owner.key_scope) is not None:
            self._key = key_of(self.call, scope)
        return self._key

    @property
    def key_parts(self) -> KeyParts | None:
        """Parts of keys that name some arguments of the call; `None` for a call without a unique name."""
        scope = self.owner.key_scope
        if scope is None or scope.thread_id is None:
            return None if scope is None else KeyParts(None, {})
        return key_parts_of(self.tool, self.owner.arguments_of(self.call), scope.thread_id)

    @property
    def fencing_token(self) -> int | None:
        """Fencing token of the attempt's first permit at a shared limit; `None` without such a permit."""
        return None if self.permits is None else self.permits.fencing_token

    def release_permits(self) -> None:
        """Release the attempt's permits, unless its abandoned worker thread holds them until the end of the thread."""
        if self.permits is not None and not self._is_handed_over:
            self.permits.release()

    def thread_abandoned(self) -> None:
        """Let the abandoned thread hold the permits; reject all queued calls if no worker thread is usable any more."""
        self._is_handed_over = True  # before `release_permits`, which the call reaches right after this
        self.owner.note("abandoned", {})
        threads, limiter = self._threads, self._thread_limiter
        if threads is not None and limiter is not None:
            threads.abandoned.add(self)
            if threads.lost is not None:
                limiter.gate(self.call, self.owner.loop).refuse_waiting(threads.lost)

    def thread_ended(self) -> None:
        """Release the attempt's permits, because its abandoned worker thread has ended."""
        if self._threads is not None:
            self._threads.abandoned.discard(self)
        if self.permits is not None:
            self.permits.release()
