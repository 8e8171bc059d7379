"""What becomes of a supervisor's children when one ends. Decides, and never waits: OTP's words, with OTP's meanings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from callboard._types import check_seconds

Restart = Literal["permanent", "transient", "temporary"]
"""Whether a child that has ended is started again: always; if it did not end in order; never."""
Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
"""Who is restarted with a child: nobody; all; those that were started after it."""
AutoShutdown = Literal["never", "any_significant", "all_significant"]
"""Whether the supervisor ends when a significant child has, or all of them have."""

RESTARTS, STRATEGIES, SHUTDOWNS = get_args(Restart), get_args(Strategy), get_args(AutoShutdown)

Ended = Literal["normal", "abnormal", "never_starts"]
"""`never_starts`: it is no use to try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before a restart: longer, the more of them there were within the period.

    Args:
        first: seconds before the first one.
        factor: how many times longer each next one takes.
        most: seconds at most.
        jitter: which part of it is random, from 0 to 1, so that those who died together do not come back together.
    """

    first: float = 0.1
    factor: float = 2.0
    most: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        check_seconds("Backoff(first=...)", self.first)
        check_seconds("Backoff(most=...)", self.most)
        for name, value in (("factor", self.factor), ("jitter", self.jitter)):
            if isinstance(value, bool) or not isinstance(cast("object", value), (int, float)):
                raise TypeError(f"Backoff({name}=...) is a number, got {value!r}")
        if self.factor < 1:
            raise ValueError(f"Backoff(factor=...) must be 1 or more, got {self.factor!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"Backoff(jitter=...) is a part of the whole, from 0 to 1; got {self.jitter!r}")

    def delay(self, restarts: int, chance: float) -> float:
        """How many seconds to wait before a restart: longer with each, and less than that by chance.

        Args:
            restarts: how many there are within the period, with this one.
            chance: from 0 to 1.
        """
        if not self.first:
            return 0.0
        whole = min(self.most, self.first * self.factor ** min(restarts - 1, 64))
        return whole * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a supervisor knows of a child."""

    name: str
    restart: Restart
    significant: bool = False


@dataclass(frozen=True, slots=True)
class Forget:
    """The child stays away; nobody else is concerned."""

    index: int


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Some are stopped, in the reverse order; after so many seconds, some are started, in order."""

    stops: tuple[int, ...]
    starts: tuple[int, ...]
    delay: float


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The supervisor ends, in order: what it is for has ended."""

    index: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The supervisor ends, because a child ends too often; whoever supervises it decides."""

    index: int
    restarts: int


Decision = Forget | StartAgain | ShutDown | GiveUp


class Restarts:
    """The restarts of one supervisor.

    Args:
        children: in the order in which they are started.
        strategy: who is restarted with a child that ended.
        intensity: how many restarts there may be within a period.
        period: in seconds; the window slides.
        backoff: how long to wait before each.
        auto_shutdown: whether it ends with its significant children.
        chance: a random number from 0 to 1.
    """

    def __init__(
        self,
        children: Sequence[Terms],
        *,
        strategy: Strategy,
        intensity: int,
        period: float,
        backoff: Backoff,
        auto_shutdown: AutoShutdown,
        chance: Callable[[], float],
    ) -> None:
        self._children = children
        self._strategy = strategy
        self._intensity = intensity
        self.period = period
        self._backoff = backoff
        self._auto_shutdown = auto_shutdown
        self._chance = chance
        self._window: list[tuple[float, int, str | None]] = []
        """When there were restarts, of whom, and of what."""
        self._away: set[int] = set()
        """Those that have ended and stay away."""

    def ended(
        self, index: int, how: Ended, now: float, *, cause: str | None = None, is_refused: bool = False
    ) -> Decision:
        """Decide what becomes of the others, and of a child that has ended by itself.

        Args:
            index: of the child.
            how: it ended.
            now: in seconds.
            cause: what it died of, if one can say that of two deaths.
            is_refused: whether that cannot happen again, because it is refused; the child's deaths of that cause then
                count no more against the intensity.
        """
        if how == "never_starts" or not _is_restarted(self._children[index].restart, how):
            return self._stays_away(index)
        self._window = [one for one in self._window if one[0] > now - self.period]
        if is_refused:
            self._window = [one for one in self._window if one[1:] != (index, cause)]
        else:
            self._window.append((now, index, cause))
        restarts = len(self._window)
        if restarts > self._intensity:
            return GiveUp(index, restarts)
        delay = self._backoff.delay(max(1, restarts), self._chance())
        others = self._others(index)
        self._away.update(one for one in others if self._children[one].restart == "temporary")
        starts = tuple(sorted({index, *others} - self._away))
        return StartAgain(others, starts, delay)

    def _stays_away(self, index: int) -> Decision:
        self._away.add(index)
        significant = {number for number, child in enumerate(self._children) if child.significant}
        if index in significant and (
            self._auto_shutdown == "any_significant"
            or (self._auto_shutdown == "all_significant" and significant <= self._away)
        ):
            return ShutDown(index)
        return Forget(index)

    def _others(self, index: int) -> tuple[int, ...]:
        """Who is stopped because this one has ended."""
        if self._strategy == "one_for_one":
            return ()
        first = 0 if self._strategy == "one_for_all" else index + 1
        return tuple(one for one in range(first, len(self._children)) if one != index and one not in self._away)


def _is_restarted(restart: Restart, how: Ended) -> bool:
    return restart == "permanent" or (restart == "transient" and how == "abnormal")
