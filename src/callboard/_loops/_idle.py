"""Idle timeouts: a block is cancelled when its code has reported no activity for too long.

A report of activity counts for every enclosing block, in whichever thread and event loop the block runs.
"""

import math
import time
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Self

from callboard._loops._protocol import EventLoop, Scope

_MOVE_INTERVAL = 0.05
"""Seconds between two moves of an idle deadline while reports of activity are frequent."""


class IdleScope:
    """Cancel scope with two deadlines: a fixed one, and an idle deadline, which each report of activity postpones.

    Invariant: the block is never cancelled as idle earlier than `seconds` after a report. With frequent reports, or
    reports from other threads, it may go on `_MOVE_INTERVAL` longer: each move of the deadline adds as much.
    """

    __slots__ = (
        "_deadline",
        "_grace",
        "_idle_deadline",
        "_is_open",
        "_is_suspended",
        "_latest_report",
        "_moved_at",
        "_no_move_until",
        "_scope",
        "loop",
        "monotonic_start",
        "outer",
        "seconds",
    )

    # `report_activity` writes `_latest_report`, `_no_move_until` and `_moved_at` from any thread, without a lock. Two
    # threads that report at the same moment both move the deadline, and `_postpone` keeps the later time. All other
    # fields belong to the loop.
    outer: "IdleScope | None"
    """Next enclosing idle scope, perhaps in another event loop; `None` if there is none."""
    _scope: Scope
    _latest_report: float  # loop time of the latest report
    _idle_deadline: float  # idle deadline, in loop time

    def __init__(self, loop: EventLoop, seconds: float, deadline: float, grace: float) -> None:
        self.loop = loop
        self.monotonic_start = 0.0
        """Time (`time.monotonic()`) of the latest report of activity that moved the deadline."""
        self.seconds = seconds
        """Maximum time without a report of activity."""
        self._deadline = deadline
        self._grace = grace
        self._moved_at = self._no_move_until = -math.inf
        """Loop times: `_moved_at` of the deadline's last move; until `_no_move_until`, reports do not move it."""
        self._is_open = self._is_suspended = False

    @property
    def cancel_called(self) -> bool:
        """True if the block was cancelled: at its idle deadline, at its fixed deadline or by `cancel()`."""
        return self._scope.cancel_called

    @property
    def was_idle(self) -> bool:
        """True if the block was cancelled at its idle deadline, because its code reported no activity for too long."""
        return self.cancel_called and self._idle_deadline < self._deadline

    def seconds_left(self) -> float:
        """Return the seconds until the idle deadline; may be called from any thread."""
        return self._latest_report + self.seconds - self.loop.now() if self._is_open else math.inf

    def is_idle_deadline(self, deadline: float) -> bool:
        """Return whether `deadline` (loop time) is the current idle deadline, which reports of activity postpone."""
        # Exact: the deadline of another scope has other last digits.
        return self._is_open and self._idle_deadline == deadline

    def move(self, deadline: float, *, grace: float | None = None) -> None:
        """Change the fixed deadline, and the time for clean-up (`grace`) if given; the idle deadline stays."""
        self._deadline = deadline
        if not self._is_suspended:
            self._scope.move(min(self._idle_deadline, deadline), grace=grace)

    def suspend(self) -> None:
        """Suspend the idle deadline and the fixed deadline until `resume()` is called."""
        self._is_suspended = True
        self._scope.move(math.inf)

    def resume(self, deadline: float) -> None:
        """Resume after `suspend()`: restart the idle timeout from zero, and set a new fixed deadline."""
        self._is_suspended, self._deadline = False, deadline
        now = self.loop.now()
        self._postpone(now, now + self.seconds)

    def cancel(self) -> None:
        """Cancel the block now."""
        self._scope.cancel()

    def note_activity(self) -> None:
        """Report activity for this block; may be called from any thread."""
        now, is_here = self.loop.now(), self.loop.is_here()
        # Fast path: a tool may report for every token that it reads, and moving a deadline costs a timer or a wake-up.
        if now < self._no_move_until:
            self._latest_report = now
            return
        if is_frequent := not is_here or now < self._moved_at + _MOVE_INTERVAL:
            self._no_move_until = now + _MOVE_INTERVAL
        self._moved_at = now
        until = now + self.seconds + (_MOVE_INTERVAL if is_frequent else 0.0)
        if is_here:
            self._postpone(now, until)
        else:
            self._latest_report = now  # at once, for `seconds_left()`; the loop may process the post much later
            self.loop.post(partial(self._postpone, now, until))

    def _postpone(self, latest: float, until: float) -> None:
        if not self._is_open:
            return
        if not self._is_suspended:
            self._scope.move(min(max(until, self._idle_deadline), self._deadline))
        # A report during the clean-up must not change `_idle_deadline`: `was_idle` still has to tell which one passed.
        if not self._scope.cancel_called:
            self._latest_report, self._idle_deadline = max(latest, self._latest_report), max(until, self._idle_deadline)
            self.monotonic_start = time.monotonic()

    def __enter__(self) -> Self:
        self._latest_report = self.loop.now()
        self._idle_deadline = self._latest_report + self.seconds
        self.monotonic_start = time.monotonic()
        self._scope = self.loop.scope(min(self._idle_deadline, self._deadline), self._grace)
        self.outer = idle_scope.get()
        idle_scope.set(self)
        self._is_open = True
        self._scope.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self._is_open = False  # before the scope is left: a report that another thread posted may still arrive
        idle_scope.set(self.outer)
        return self._scope.__exit__(kind, error, traceback)


idle_scope: ContextVar[IdleScope | None] = ContextVar("callboard_idle", default=None)
"""Innermost idle scope around the running code; `None` without one."""


def report_activity() -> None:
    """Report activity, so that the idle timeouts of all enclosing blocks start again; may be called from any thread."""
    for scope in _enclosing_scopes():
        scope.note_activity()


def seconds_until_idle() -> float:
    """Return the seconds until the nearest idle deadline of the enclosing scopes; `math.inf` without any."""
    return min((scope.seconds_left() for scope in _enclosing_scopes()), default=math.inf)


def is_postponed_by_activity(deadline: float, loop: EventLoop) -> bool:
    """Return whether a deadline is the idle deadline of an enclosing scope, so that reports of activity postpone it."""
    return any(scope.loop is loop and scope.is_idle_deadline(deadline) for scope in _enclosing_scopes())


def _enclosing_scopes() -> Iterator[IdleScope]:
    scope = idle_scope.get()
    while scope is not None:
        yield scope
        scope = scope.outer
