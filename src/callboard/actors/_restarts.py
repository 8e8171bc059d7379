"""Restart policy of a supervisor: decides which children are stopped and started when a child ends.

Its terms and rules are those of OTP. It only decides, and never waits.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, get_args

from callboard._records._policies import check_factor, check_seconds

Restart = Literal["permanent", "transient", "temporary"]
"""Restart type of a child, as in OTP: restarted always, unless it ended in order, or never.

No child ends in order by itself, so a transient child is restarted as a permanent one.
"""
Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
"""Other children that are restarted together with a child that ended: none, all, or all started after it."""

RESTARTS, STRATEGIES = get_args(Restart), get_args(Strategy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delay before a restart; it grows with the number of recent restarts (within the supervisor's `period`).

    Args:
        first: seconds before the first restart.
        factor: growth of the delay with each further restart, 1 or more.
        maximum: maximum in seconds.
        jitter: random part of the delay, from 0 to 1. It spreads the restarts of actors that crashed together.

    Raises:
        TypeError: if a value is no number.
        ValueError: if a value is out of range.
    """

    first: float = 0.1
    factor: float = 2.0
    maximum: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        check_seconds("Backoff(first=...)", self.first)
        check_seconds("Backoff(maximum=...)", self.maximum)
        check_factor("Backoff(factor=...)", self.factor)
        if isinstance(self.jitter, bool) or not isinstance(self.jitter, (int, float)):
            raise TypeError(f"Backoff(jitter=...) is a number, got {self.jitter!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"Backoff(jitter=...) is a part of the whole, from 0 to 1; got {self.jitter!r}")

    def delay(self, restarts: int, chance: float) -> float:
        """Return the delay before a restart in seconds; `restarts` counts the restarts in the supervisor's `period`.

        `chance` is a random number from 0 to 1.
        """
        if not self.first:
            return 0.0
        try:
            full_delay = min(self.maximum, self.first * self.factor ** (restarts - 1))
        except OverflowError:  # larger than any float, and so than `maximum`
            full_delay = self.maximum
        return full_delay * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Decision: stop the children `stops` in reverse order, wait `delay` seconds, then start the children `starts`."""

    stops: tuple[int, ...]
    starts: tuple[int, ...]
    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Decision: the supervisor fails, because a child ended too often; the supervisor above it decides next."""

    restarts: int


Decision = StartAgain | GiveUp | Literal["forget", "shut_down"]
"""Decision after the end of a child.

`forget`: it is not restarted, and the other children are not affected. `shut_down`: the supervisor ends without an
error, because a child is not restarted; see `ends_with_child`.
"""


@dataclass(slots=True)
class Restarts:
    """Restart policy of one supervisor. It only returns decisions, and uses neither a clock nor tasks."""

    children: Sequence[Restart]
    """Restart types of the children."""
    _: KW_ONLY
    intensity: int
    period: float
    strategy: Strategy = "one_for_one"
    backoff: Backoff = field(default_factory=Backoff)
    ends_with_child: bool = False
    """`True` if the supervisor ends in order as soon as a child is not restarted."""
    chance: Callable[[], float] = random.random
    _window: list[tuple[float, int, str | None]] = field(default_factory=list[Any], init=False)
    """Restarts within the period: time, index of the child, and identity of the call that crashed it, if known."""
    _not_restarted: set[int] = field(default_factory=set[int], init=False)
    """Indexes of children that have ended and are not restarted."""

    def decide(
        self, index: int, now: float, *, never_starts: bool = False, cause: str | None = None, is_refused: bool = False
    ) -> Decision:
        """Return the decision after a child ended by itself: forget it, restart children, or end the supervisor.

        `never_starts`: another attempt to start the child would fail, too.
        """
        if never_starts or self.children[index] == "temporary":
            self._not_restarted.add(index)
            return "shut_down" if self.ends_with_child else "forget"
        self._window = [entry for entry in self._window if entry[0] > now - self.period]
        if is_refused:
            # Poison of one child must not use up the intensity: from now on the call cannot crash it again.
            self._window = [entry for entry in self._window if entry[1:] != (index, cause)]
        else:
            self._window.append((now, index, cause))
        restarts = len(self._window)
        # OTP's rule: `intensity` restarts are allowed, one more ends the supervisor.
        if restarts > self.intensity:
            return GiveUp(restarts)
        delay = self.backoff.delay(max(1, restarts), self.chance())
        first = {"one_for_one": len(self.children), "one_for_all": 0, "rest_for_one": index}[self.strategy]
        ended = {index, *self._not_restarted}
        others = tuple(other for other in range(first, len(self.children)) if other not in ended)
        # OTP's rule: a temporary child that is stopped with the others is not started again.
        self._not_restarted.update(other for other in others if self.children[other] == "temporary")
        starts = tuple(sorted({index, *others} - self._not_restarted))
        return StartAgain(others, starts, delay)
