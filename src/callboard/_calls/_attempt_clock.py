"""Timeouts of one attempt, suspended while the body waits for its turn in an engine."""

import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import NamedTuple, TypeVar

from callboard._loops._current import run_there
from callboard._loops._deadline import Timed, TimeLimit, current_timed
from callboard._loops._idle import IdleScope
from callboard._loops._protocol import EventLoop, Scope
from callboard._records._policies import CallPolicy

T = TypeVar("T")


class OutOfTime(NamedTuple):
    """Reason why a timeout ended an attempt."""

    seconds: float
    is_idle: bool
    """True for the idle timeout, false for the timeout of the whole body."""
    held: str | None
    """Description of the code that blocked the event loop meanwhile, if any."""
    cause: Exception | None
    """Error that the clean-up of the body raised."""


class AttemptClock:
    """Timeout and idle timeout of one body.

    Args:
        loop: the running event loop.
        policy: has both timeouts.
        until: deadline of the call, in loop time.
        grace: seconds of clean-up.
    """

    __slots__ = ("_began", "_grace", "_idle", "_loop", "_scope", "_timed", "_timeout", "_until")

    def __init__(self, loop: EventLoop, policy: CallPolicy, until: float, grace: float) -> None:
        self._loop = loop
        self._timeout = policy.timeout
        self._until = until
        self._grace = grace
        self._began = monotonic()
        deadline = self._deadline()
        idle = policy.idle_timeout
        self._idle = None if idle is None else IdleScope(loop, idle, deadline, grace)
        self._scope: Scope = loop.scope(deadline, grace) if self._idle is None else self._idle
        self._timed = Timed(loop, min(until, deadline), grace)

    def _deadline(self) -> float:
        return math.inf if self._timeout is None else self._loop.now() + self._timeout

    async def run(self, body: Callable[[], Awaitable[T]]) -> "T | OutOfTime":
        """Run the body; return its result, or the reason if a timeout ended it."""
        token = current_timed.set(self._timed)
        try:
            with (limit := TimeLimit(self._scope)):
                return await body()
        finally:
            current_timed.reset(token)
        # Reached only if a timeout ended the block.
        idle = self._idle
        if idle is not None and idle.was_idle:
            return OutOfTime(idle.seconds, True, self._loop.pulse.held_since(idle.since), limit.cause)
        assert self._timeout is not None
        return OutOfTime(self._timeout, False, self._loop.pulse.held_since(self._began), limit.cause)

    def hold(self) -> None:
        """Suspend both timeouts while the body waits for its turn in an engine; only in the loop's thread."""
        self._timed.until = self._until
        if self._idle is not None:
            self._idle.hold()
        else:
            self._scope.move(math.inf)

    def go_on(self) -> None:
        """Restart both timeouts from zero, because the body begins; from any thread."""
        run_there(self._loop, self._begin_anew)

    def _begin_anew(self) -> None:
        self._began, deadline = monotonic(), self._deadline()
        self._timed.until = min(self._until, deadline)
        if self._idle is not None:
            self._idle.go_on(deadline)
        else:
            self._scope.move(deadline)


class Turn:
    """Wait of a body for its turn in an engine; its timeouts are suspended meanwhile."""

    __slots__ = ("_clock", "_is_over")

    def __init__(self, clock: AttemptClock) -> None:
        self._clock = clock
        self._is_over = False
        clock.hold()

    def begin(self) -> None:
        """Restart the timeouts, because the body begins; once, from any thread."""
        self._is_over = True  # before `go_on`: `end` in the event loop must not restart the timeouts a second time
        self._clock.go_on()

    def end(self) -> None:
        """Restart the timeouts if the body never began."""
        if not self._is_over:
            self._clock.go_on()
