"""Statistics of many calls in constant memory: quantiles of durations, and the recent rate of ended calls."""

from collections import Counter, deque
from math import ceil, exp, floor, log

_GROWTH = log(1.04)
"""Width of a bucket on a log scale: 4 %, so the middle of a bucket is less than 2 % off."""
_SHORTEST = 1e-4
_LONGEST = 1e6

_WINDOW = 5.0
_STEP = 0.25


class Durations:
    """Histogram of durations in about 600 buckets at most.

    A quantile is less than 2 % off between 0.1 ms and eleven days. Shorter durations count as 0.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return sum(self._counts.values())

    def add(self, seconds: float) -> None:
        """Count a duration in seconds."""
        self._counts[_bucket(seconds)] += 1

    def merge(self, other: "Durations") -> None:
        """Add the durations of another histogram."""
        self._counts.update(other._counts)

    def quantile(self, share: float) -> float | None:
        """Return the duration that a share (0 to 1) of the calls did not exceed; `None` without durations."""
        counts = sorted(self._counts.items())
        left = max(1, ceil(share * sum(number for _, number in counts)))
        for bucket, number in counts:
            left -= number
            if left <= 0:
                return _middle(bucket)
        return None


def _bucket(seconds: float) -> int:
    if seconds < _SHORTEST:
        return -1
    return floor(log(min(seconds, _LONGEST) / _SHORTEST) / _GROWTH)


def _middle(bucket: int) -> float:
    return 0.0 if bucket < 0 else _SHORTEST * exp((bucket + 0.5) * _GROWTH)


class Lately:
    """Counter of the calls that ended in the last five seconds, in steps of a quarter of a second."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque(maxlen=ceil(_WINDOW / _STEP) + 1)

    def add(self, time: float) -> None:
        """Count a call that ended at a time, in seconds."""
        step, number = floor(time / _STEP), 0
        if self._steps and self._steps[-1][0] >= step:  # an event of another thread may arrive a little late
            step, number = self._steps.pop()
        self._steps.append((step, number + 1))

    def rate(self, now: float, since: float) -> float:
        """Return the average number of ended calls per second; `since` is the time when counting began."""
        first = floor((now - _WINDOW) / _STEP)
        number = sum(number for step, number in tuple(self._steps) if step > first)
        return number / max(_STEP, min(_WINDOW, now - since))
