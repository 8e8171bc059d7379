"""Time limits of the running call: deadline, timeouts, remaining seconds and grace for clean-up."""

import logging
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from anyio import current_effective_deadline

from callboard._loops._current import current_loop, run_there
from callboard._loops._idle import IdleScope, seconds_until_idle
from callboard._loops._protocol import EventLoop, Scope
from callboard.exceptions import CallTimeoutError

T = TypeVar("T")

_log = logging.getLogger("callboard")

DEFAULT_GRACE = 5.0
"""Default seconds of clean-up after a cancellation."""

INSTANT = 1e-6
"""Difference in seconds below which two times are equal; times of two loops' clocks differ in the last digits."""


@dataclass(slots=True, eq=False)
class TimeLimits:
    """Deadline (loop time) of a block of code, and seconds for clean-up after a cancellation (grace)."""

    loop: EventLoop
    until: float
    grace: float
    _cleanup_until: float | None = None

    def cleanup_deadline(self) -> float:
        """Return the loop time until which a clean-up that begins now is shielded."""
        now = self.loop.now()
        if current_effective_deadline() > now:
            return now + self.grace
        # Already cancelled: several clean-ups in a row share one grace, or a call could prolong its end without limit.
        if self._cleanup_until is None:
            self._cleanup_until = now + self.grace
        return self._cleanup_until


class TimeLimit:
    """Cancel scope whose `with` block always ends by `return`: code after the block runs only after a timeout.

    The caller puts `return` into the block and raises its timeout error after it. An error that the clean-up raised
    after the timeout is stored in `cause` instead of hiding the timeout.
    """

    __slots__ = ("_passes", "_scope", "cause")

    def __init__(self, scope: Scope, passes: Callable[[Exception], bool] | None = None) -> None:
        self._scope = scope
        self._passes = passes
        self.cause: Exception | None = None
        """Error that a clean-up raised after the timeout."""

    def __enter__(self) -> Scope:
        return self._scope.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        try:
            swallowed = self._scope.__exit__(kind, error, traceback)
        except Exception as other_error:
            # trio removes its cancellation from an exception group, and raises the other errors.
            if not self._is_cleanup_error(other_error):
                raise
            self.cause = other_error
            return True
        if swallowed or not isinstance(error, Exception) or not self._is_cleanup_error(error):
            return swallowed
        self.cause = error
        return True

    def _is_cleanup_error(self, error: Exception) -> bool:
        """Return whether this error comes from a clean-up after the timeout, and must be stored instead of raised."""
        return self._scope.cancel_called and not (self._passes is not None and self._passes(error))


active_time_limits: ContextVar[TimeLimits | None] = ContextVar("callboard_call", default=None)


class TimeoutClock(TimeLimits):
    """Timeout and idle timeout of a tool's function, or of a middleware, with methods that suspend and restart both."""

    __slots__ = ("_call_until", "_idle", "_monotonic_start", "_suspensions", "_timeout", "scope")

    def __init__(self, loop: EventLoop, call_limits: TimeLimits, *, timeout: float | None, idle: float | None) -> None:
        deadline = math.inf if timeout is None else loop.now() + timeout
        super().__init__(loop, min(call_limits.until, deadline), call_limits.grace)
        self._timeout = timeout
        self._call_until = call_limits.until
        self._monotonic_start = monotonic()  # for the watchdog, which knows no time of loops
        self._suspensions = 0
        """Number of suspensions that have not ended: a middleware may run several attempts at once."""
        self._idle = None if idle is None else IdleScope(loop, idle, deadline, self.grace)
        self.scope: Scope = loop.scope(deadline, self.grace) if self._idle is None else self._idle
        """Scope that cancels the code when one of the timeouts is over."""

    async def bound(self, running: Awaitable[T], tool: str, call_id: str | None, *, by_middleware: bool = False) -> T:
        """Await code within its timeouts; raise `CallTimeoutError` if one of them is over."""
        token = active_time_limits.set(self)
        try:
            with (limit := TimeLimit(self.scope)):
                return await running
        finally:
            active_time_limits.reset(token)
        # Reached only if a timeout ended the block.
        idle, is_idle = self._idle, self._idle is not None and self._idle.was_idle
        seconds, start = self._timeout, self._monotonic_start
        if idle is not None and is_idle:
            seconds, start = idle.seconds, idle.monotonic_start
        assert seconds is not None
        code = self.loop.monitor.blocking_since(start)
        raise CallTimeoutError(
            tool, call_id, seconds, blocking_code=code, idle=is_idle, by_middleware=by_middleware
        ) from limit.cause

    def suspend(self) -> None:
        """Suspend both timeouts; call this in the event loop's thread."""
        self._suspensions += 1
        self.until = self._call_until
        if self._idle is not None:
            self._idle.suspend()
        else:
            self.scope.move(math.inf)

    def resume(self) -> None:
        """End a suspension, and restart both timeouts after the last one; call this in the event loop's thread."""
        self._suspensions -= 1
        if not self._suspensions:
            self._restart_timeouts()

    def begin(self) -> None:
        """End the suspension at the moment in which an engine starts the tool's function; call this from any thread."""
        self._suspensions = 0  # at once: `end` in the event loop must not restart the timeouts a second time
        run_there(self.loop, self._restart_timeouts)

    def end(self) -> None:
        """End the suspension, unless `begin()` did so at the start of the function."""
        if self._suspensions:
            self.begin()

    def _restart_timeouts(self) -> None:
        self._monotonic_start = monotonic()
        deadline = math.inf if self._timeout is None else self.loop.now() + self._timeout
        self.until = min(self._call_until, deadline)
        if self._idle is not None:
            self._idle.resume(deadline)
        else:
            self.scope.move(deadline)


cleaning_up: ContextVar[bool] = ContextVar("callboard_cleaning_up", default=False)
"""True inside the `cleanup()` block of a cancelled call, where a shield hides the cancellation."""


@contextmanager
def cleanup() -> Generator[None]:
    """Shield a tool's clean-up from cancellation for a few seconds (the grace).

    `with callboard.cleanup(): await client.aclose()` completes on asyncio and on trio after a timeout, a failed
    parallel call or a cancellation of the caller. The grace (seconds) is that of the call's policy; outside of a call
    it is 5 seconds. A clean-up that takes longer is cancelled, the logger "callboard" warns, and the code after the
    block continues.
    """
    limits = current_time_limits(current_loop())
    is_whole = False
    # Noted before the shield hides the cancellation: the clean-up of a cancelled call must not start calls.
    token = cleaning_up.set(cleaning_up.get() or limits.loop.is_cancelled())
    try:
        with limits.loop.shield(limits.cleanup_deadline()):
            yield
            is_whole = True
    finally:
        cleaning_up.reset(token)
    if not is_whole:
        _log.warning("A clean-up was cut off, because its grace of %g s was over", limits.grace)


def current_time_limits(loop: EventLoop) -> TimeLimits:
    """Return the time limits of the running call, or the defaults outside of a call."""
    limits = active_time_limits.get()
    if limits is not None and limits.loop is loop:
        return limits
    # Outside of a call there is no deadline. A call of another loop, behind a bridge, cancels this code by itself.
    return TimeLimits(loop, math.inf, DEFAULT_GRACE if limits is None else limits.grace)


def cap_grace(loop: EventLoop, seconds: float) -> None:
    """Limit the time for clean-up after a cancellation, in this context, to `seconds`."""
    limits = active_time_limits.get()
    if limits is None:
        limits = TimeLimits(loop, math.inf, DEFAULT_GRACE)
    if limits.grace > seconds:
        active_time_limits.set(TimeLimits(limits.loop, limits.until, seconds))


def remaining() -> float:
    """Return the seconds until the nearest deadline of the running call; `math.inf` without one, never below 0.

    Deadlines are the attempt's timeout and idle timeout, the call's budget, and the same limits of enclosing calls.
    In async code, the cancel scopes of the event loop count, too. May also be called in the thread of a sync tool.
    """
    limits = active_time_limits.get()
    seconds_left = (
        seconds_until_idle() if limits is None else min(seconds_until_idle(), limits.until - limits.loop.now())
    )
    try:
        deadline = current_effective_deadline()
        if deadline < math.inf:
            seconds_left = min(seconds_left, deadline - current_loop().now())
    except (RuntimeError, LookupError):  # a worker thread: no event loop has scopes there
        pass
    return max(0.0, seconds_left)
