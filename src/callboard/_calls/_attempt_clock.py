"""The time that one attempt has: its timeout, which stands still while the body waits for its turn elsewhere."""

import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import NamedTuple, TypeVar

from callboard._loops._current import run_there
from callboard._loops._deadline import Timed, TimeLimit, current_timed
from callboard._loops._idle import IdleScope
from callboard._loops._protocol import EventLoop, Scope
from callboard._types import CallPolicy

T = TypeVar("T")


class OutOfTime(NamedTuple):
    """Why an attempt was ended."""

    seconds: float
    is_idle: bool
    """Whether it gave no sign of life for so long, or took so long."""
    held: str | None
    """Who kept the event loop from turning meanwhile."""
    cause: Exception | None
    """What its clean-up raised."""


class AttemptClock:
    """Runs a body until its timeout, or its idle timeout, is over.

    Args:
        loop: the running one.
        policy: has the timeouts.
        until: when what is around the attempt ends.
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
        """What the body returns, or why it was ended."""
        token = current_timed.set(self._timed)
        try:
            with (limit := TimeLimit(self._scope)):
                return await body()
        finally:
            current_timed.reset(token)
        idle = self._idle
        if idle is not None and idle.was_idle:
            return OutOfTime(idle.seconds, True, self._loop.pulse.held_since(idle.since), limit.cause)
        assert self._timeout is not None
        return OutOfTime(self._timeout, False, self._loop.pulse.held_since(self._began), limit.cause)

    def hold(self) -> None:
        """Stand still: the body waits for its turn elsewhere. To be called in the loop's thread."""
        self._timed.until = self._until
        if self._idle is not None:
            self._idle.hold()
        else:
            self._scope.move(math.inf)

    def go_on(self) -> None:
        """Begin anew, for the body has its turn; from any thread."""
        run_there(self._loop, self._begin_anew)

    def _begin_anew(self) -> None:
        self._began, deadline = monotonic(), self._deadline()
        self._timed.until = min(self._until, deadline)
        if self._idle is not None:
            self._idle.go_on(deadline)
        else:
            self._scope.move(deadline)


class Turn:
    """The wait of a body for its turn elsewhere: its timeout stands still meanwhile."""

    __slots__ = ("_clock", "_is_over")

    def __init__(self, clock: AttemptClock) -> None:
        self._clock = clock
        self._is_over = False
        clock.hold()

    def begin(self) -> None:
        """Let the time go on, because the body begins; from any thread, once."""
        self._is_over = True
        self._clock.go_on()

    def end(self) -> None:
        """Let the time go on, if the body never began."""
        if not self._is_over:
            self._clock.go_on()
