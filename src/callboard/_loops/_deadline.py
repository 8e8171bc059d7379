"""How much time a call has, and how much clean-up after that; what `cleanup` and `remaining` look up."""

import logging
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from anyio import current_effective_deadline

from callboard._loops._current import current_loop
from callboard._loops._idle import until_idle
from callboard._loops._protocol import EventLoop, Scope

_log = logging.getLogger("callboard")

DEFAULT_GRACE = 5.0
"""Seconds of clean-up after a cancel where nobody said otherwise."""

INSTANT = 1e-6
"""Seconds up to which two readings of a clock are the same; those of two loops differ in the last digits."""


class Timed:
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


class TimeLimit:
    """A scope in a `with`: what comes behind the block runs only if the scope has ended it.

    Whoever leaves a scope that was ended looks as if nothing had happened, and what a clean-up raised then hides
    why it ran. So the block returns its result, and an error for the time that is over stands behind it.

    Args:
        scope: not entered yet.
        passes: which errors go on even so.
    """

    __slots__ = ("_passes", "_scope", "cause")

    def __init__(self, scope: Scope, passes: Callable[[Exception], bool] | None = None) -> None:
        self._scope = scope
        self._passes = passes
        self.cause: Exception | None = None
        """What a clean-up raised."""

    def __enter__(self) -> Scope:
        return self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            swallowed = self._scope.__exit__(kind, error, traceback)
        except Exception as rest:  # trio takes its cancellation out of a group, and raises what is left of it
            if not self._takes(rest):
                raise
            self.cause = rest
            return True
        if swallowed or not isinstance(error, Exception) or not self._takes(error):
            return swallowed
        self.cause = error
        return True

    def _takes(self, error: Exception) -> bool:
        """Whether an error is what a clean-up raised because the time was over."""
        return self._scope.cancel_called and not (self._passes is not None and self._passes(error))


_cleaning_up: ContextVar[bool] = ContextVar("callboard_cleaning_up", default=False)
current_timed: ContextVar[Timed | None] = ContextVar("callboard_call", default=None)


@contextmanager
def cleanup() -> Generator[None]:
    """Shield the clean-up of a tool from cancellation, for as long as its grace lasts.

    `with callboard.cleanup(): await client.aclose()` completes on asyncio and on trio after a timeout, a
    failed neighbour or a cancelled caller, unless it takes longer than the grace of the call's policy
    (seconds); then it is cut off, which is a warning of the logger "callboard", and the code behind the block goes on.
    Outside a call the grace is 5 seconds.
    """
    timed = current_time_limits(current_loop())
    is_whole = False
    token = _cleaning_up.set(_cleaning_up.get() or timed.loop.is_cancelled())
    try:
        with timed.loop.shield(timed.cleanup_deadline()):
            yield
            is_whole = True
    finally:
        _cleaning_up.reset(token)
    if not is_whole:
        _log.warning("A clean-up was cut off, because its grace of %g s was over", timed.grace)


def current_time_limits(loop: EventLoop) -> Timed:
    """The limits of the call that runs here, or those of code outside of any."""
    timed = current_timed.get()
    if timed is not None and timed.loop is loop:
        return timed
    # Nothing ends here by itself; or it is another loop that says when, and we came over a bridge.
    return Timed(loop, math.inf, DEFAULT_GRACE if timed is None else timed.grace)


def cap_grace(loop: EventLoop, seconds: float) -> None:
    """Give clean-up in this context so many seconds at most."""
    timed = current_timed.get()
    if timed is None:
        timed = Timed(loop, math.inf, DEFAULT_GRACE)
    if timed.grace > seconds:
        current_timed.set(Timed(timed.loop, timed.until, seconds))


def is_cleaning_up() -> bool:
    """Whether this is the clean-up of something cancelled; behind the shield one cannot see that any more."""
    return _cleaning_up.get()


def remaining() -> float:
    """Seconds that the running call has left; `math.inf` without an end, never below 0.

    The nearest of the attempt's timeout and idle timeout, the call's budget, those of the calls around it and,
    in async code, the deadlines of the event loop's own scopes. May be asked from a sync tool's thread too.
    """
    timed = current_timed.get()
    left = until_idle() if timed is None else min(until_idle(), timed.until - timed.loop.now())
    try:
        deadline = current_effective_deadline()
        if deadline < math.inf:
            left = min(left, deadline - current_loop().now())
    except (RuntimeError, LookupError):  # a worker thread
        pass
    return max(0.0, left)
