"""Idle timeouts: a block is cancelled when its code has reported no activity for too long.

A report of activity counts for every enclosing block, in whichever thread and event loop the block runs.
"""

import math
import time
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Self

from callboard._loops._protocol import EventLoop, Scope

_OFTEN = 0.05
"""Seconds between two moves of an idle deadline while reports of activity are frequent."""


class IdleScope:
    """Cancel scope with two deadlines: a fixed one, and an idle deadline, which each report of activity postpones.

    Invariant: the block is never cancelled as idle earlier than `seconds` after a report. With frequent reports, or
    reports from other threads, it may go on `_OFTEN` longer: each move of the deadline adds that much in advance.
    """

    __slots__ = (
        "_covered",
        "_deadline",
        "_grace",
        "_is_held",
        "_latest",
        "_moved",
        "_open",
        "_outer",
        "_scope",
        "_seconds",
        "_until",
        "loop",
        "since",
    )

    # `report_activity` writes `_latest`, `_covered` and `_moved` from any thread, without a lock. Two threads that
    # report at the same moment both move the deadline, and `_put_off` keeps the later time. All other fields belong to
    # the loop.
    _outer: "IdleScope | None"
    _scope: Scope
    _latest: float  # loop time of the latest report
    _until: float  # idle deadline, in loop time

    def __init__(self, loop: EventLoop, seconds: float, deadline: float, grace: float) -> None:
        self.loop = loop
        self.since = 0.0
        """Time (`time.monotonic()`) of the latest report of activity that moved the deadline."""
        self._seconds = seconds
        self._deadline = deadline
        self._grace = grace
        self._moved = self._covered = -math.inf
        """`_moved`: loop time of the deadline's last move. `_covered`: loop time until which reports do not move it."""
        self._open = self._is_held = False

    @property
    def cancel_called(self) -> bool:
        """True if the block was cancelled: at its idle deadline, at its fixed deadline or by `cancel()`."""
        return self._scope.cancel_called

    @property
    def was_idle(self) -> bool:
        """True if the block was cancelled at its idle deadline, because its code reported no activity for too long."""
        return self.cancel_called and self._until < self._deadline

    @property
    def around(self) -> "IdleScope | None":
        """Next enclosing idle scope, perhaps in another event loop; `None` if there is none."""
        return self._outer

    def seconds_left(self) -> float:
        """Return the seconds until the idle deadline; may be called from any thread."""
        return self._latest + self._seconds - self.loop.now() if self._open else math.inf

    def will_be_idle_at(self, deadline: float) -> bool:
        """Return whether `deadline` (loop time) is the current idle deadline, which reports of activity postpone."""
        return self._open and self._until == deadline  # exact: the deadline of another scope has other last digits

    def move(self, deadline: float, *, grace: float | None = None) -> None:
        """Change the fixed deadline, and the time for clean-up (`grace`) if given; the idle deadline stays."""
        self._deadline = deadline
        if not self._is_held:
            self._scope.move(min(self._until, deadline), grace=grace)

    @property
    def seconds(self) -> float:
        """Maximum time without a report of activity, in seconds."""
        return self._seconds

    def hold(self) -> None:
        """Suspend the idle deadline and the fixed deadline until `go_on()` is called."""
        self._is_held = True
        self._scope.move(math.inf)

    def go_on(self, deadline: float) -> None:
        """Resume after `hold()`: restart the idle timeout from zero, and set a new fixed deadline."""
        self._is_held, self._deadline = False, deadline
        now = self.loop.now()
        self._put_off(now, now + self._seconds)

    def cancel(self) -> None:
        """Cancel the block now."""
        self._scope.cancel()

    def alive(self) -> None:
        """Report activity for this block; may be called from any thread."""
        now, is_here = self.loop.now(), self.loop.is_here()
        # Fast path: a tool may report for every token that it reads, and moving a deadline costs a timer or a wake-up.
        if now < self._covered:
            self._latest = now
            return
        if is_often := not is_here or now < self._moved + _OFTEN:
            self._covered = now + _OFTEN
        self._moved = now
        until = now + self._seconds + (_OFTEN if is_often else 0.0)
        if is_here:
            self._put_off(now, until)
        else:
            self._latest = now  # at once, for `seconds_left()`; the loop may process the post much later
            self.loop.post(partial(self._put_off, now, until))

    def _put_off(self, latest: float, until: float) -> None:
        if not self._open:
            return
        if not self._is_held:
            self._scope.move(min(max(until, self._until), self._deadline))
        # A report during the clean-up must not change `_until`: `was_idle` still has to tell which deadline passed.
        if not self._scope.cancel_called:
            self._latest, self._until = max(latest, self._latest), max(until, self._until)
            self.since = time.monotonic()

    def __enter__(self) -> Self:
        self._latest = self.loop.now()
        self._until = self._latest + self._seconds
        self.since = time.monotonic()
        self._scope = self.loop.scope(min(self._until, self._deadline), self._grace)
        self._outer = idle_scope.get()
        idle_scope.set(self)
        self._open = True
        self._scope.__enter__()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        self._open = False  # before the scope is left: a report that another thread posted may still arrive
        idle_scope.set(self._outer)
        return self._scope.__exit__(exc_type, exc, tb)


idle_scope: ContextVar[IdleScope | None] = ContextVar("callboard_idle", default=None)
"""Innermost idle scope around the running code; `None` without one."""


def report_activity() -> None:
    """Report activity, so that the idle timeouts of all enclosing blocks start again; may be called from any thread."""
    scope = idle_scope.get()
    while scope is not None:
        scope.alive()
        scope = scope.around


def until_idle() -> float:
    """Return the seconds until the nearest idle deadline of the enclosing scopes; `math.inf` without any."""
    if idle_scope.get() is None:
        return math.inf
    return min(scope.seconds_left() for scope in _around_here())


def is_put_off(deadline: float, loop: EventLoop) -> bool:
    """Return whether a deadline is the idle deadline of an enclosing scope, so that reports of activity postpone it."""
    if idle_scope.get() is None:
        return False
    return any(scope.loop is loop and scope.will_be_idle_at(deadline) for scope in _around_here())


def _around_here() -> Iterator[IdleScope]:
    scope = idle_scope.get()
    while scope is not None:
        yield scope
        scope = scope.around
