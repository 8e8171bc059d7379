"""A block that ends when it gives no sign of life for too long.

A sign of life counts for all such blocks around the code that gives it, in whichever thread and event loop they run:
what works for a block keeps it alive.
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
"""Seconds within which a second sign of life comes often; the deadline is then put off for those that follow, too."""


class IdleScope:
    """A scope whose deadline is put off by each sign of life, up to a deadline that stays.

    Invariant: the block is never ended earlier than `seconds` after a sign of life. Where they come often, or from
    another thread, it may go on for `_OFTEN` longer: the deadline is put off for as much more, and then left alone.

    Args:
        loop: the running one.
        seconds: how long the block may go without a sign of life.
        deadline: when it ends in any case.
        grace: seconds of clean-up after that.
    """

    __slots__ = (
        "_around",
        "_covered",
        "_deadline",
        "_grace",
        "_is_held",
        "_latest",
        "_moved",
        "_open",
        "_scope",
        "_seconds",
        "_until",
        "loop",
        "since",
    )

    _around: "IdleScope | None"
    _scope: Scope
    _latest: float
    _until: float

    def __init__(self, loop: EventLoop, seconds: float, deadline: float, grace: float) -> None:
        self.loop = loop
        self.since = 0.0
        """When the latest sign of life was given, by `time.monotonic()`."""
        self._seconds = seconds
        self._deadline = deadline
        self._grace = grace
        self._moved = self._covered = -math.inf
        """When the deadline was put off last, and until when a sign of life has been counted before it is given."""
        self._open = self._is_held = False

    @property
    def cancel_called(self) -> bool:
        """Whether the block was ended, by whichever of its two limits."""
        return self._scope.cancel_called

    @property
    def was_idle(self) -> bool:
        """Whether it was ended for want of a sign of life, and not by the deadline that stays."""
        return self.cancel_called and self._until < self._deadline

    @property
    def around(self) -> "IdleScope | None":
        """The block around this one, perhaps in another event loop."""
        return self._around

    def left(self) -> float:
        """Seconds until it is idle; may be asked from any thread."""
        return self._latest + self._seconds - self.loop.now() if self._open else math.inf

    def will_be_idle_at(self, deadline: float) -> bool:
        """Whether this is when it will be idle; no other clock's time is the same to the last digit."""
        return self._open and self._until == deadline

    def move(self, deadline: float, *, grace: float | None = None) -> None:
        """Have the block end then in any case."""
        self._deadline = deadline
        if not self._is_held:
            self._scope.move(min(self._until, deadline), grace=grace)

    @property
    def seconds(self) -> float:
        """How long the block may go without a sign of life."""
        return self._seconds

    def hold(self) -> None:
        """Let the block go on without a sign of life, and past its deadline, until `go_on`."""
        self._is_held = True
        self._scope.move(math.inf)

    def go_on(self, deadline: float) -> None:
        """Count from now on, with another deadline that stays."""
        self._is_held, self._deadline = False, deadline
        now = self.loop.now()
        self._put_off(now, now + self._seconds)

    def cancel(self) -> None:
        """Have the block end now."""
        self._scope.cancel()

    def alive(self) -> None:
        """Take in a sign of life; from any thread."""
        now, is_here = self.loop.now(), self.loop.is_here()
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
            self._latest = now
            self.loop.post(partial(self._put_off, now, until))

    def _put_off(self, latest: float, until: float) -> None:
        if not self._open:
            return
        if not self._is_held:
            self._scope.move(min(max(until, self._until), self._deadline))
        if not self._scope.cancel_called:  # after the end, in a clean-up, nothing is put off
            self._latest, self._until = max(latest, self._latest), max(until, self._until)
            self.since = time.monotonic()

    def __enter__(self) -> Self:
        self._latest = self.loop.now()
        self._until = self._latest + self._seconds
        self.since = time.monotonic()
        self._scope = self.loop.scope(min(self._until, self._deadline), self._grace)
        self._around = _innermost.get()
        _innermost.set(self)
        self._open = True
        self._scope.__enter__()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        self._open = False
        _innermost.set(self._around)
        return self._scope.__exit__(exc_type, exc, tb)


_innermost: ContextVar[IdleScope | None] = ContextVar("callboard_idle", default=None)


def alive() -> None:
    """Give a sign of life on behalf of all that is around the code that runs here; from any thread."""
    scope = _innermost.get()
    while scope is not None:
        scope.alive()
        scope = scope.around


def until_idle() -> float:
    """Seconds until the first block around the code that runs here is idle; `math.inf` if there is none."""
    if _innermost.get() is None:
        return math.inf
    return min(scope.left() for scope in _around_here())


def is_put_off(deadline: float, loop: EventLoop) -> bool:
    """Whether a deadline of an event loop is that of such a block, so that a sign of life moves it."""
    if _innermost.get() is None:
        return False
    return any(scope.loop is loop and scope.will_be_idle_at(deadline) for scope in _around_here())


def _around_here() -> Iterator[IdleScope]:
    scope = _innermost.get()
    while scope is not None:
        yield scope
        scope = scope.around
