"""Assignment of overlapping intervals to as few lanes as possible."""

import heapq
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def lanes(items: Iterable[T], span: Callable[[T], tuple[float, float]]) -> list[tuple[int, T]]:
    """Return (lane, item) pairs ordered by start; `span` gives start and end of an item. Lanes count from 0."""
    # Every lane is either busy or free, so `len(busy)` is the next new lane exactly when no lane is free.
    placed: list[tuple[int, T]] = []
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for item in sorted(items, key=span):
        start, end = span(item)
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        placed.append((lane, item))
    return placed
