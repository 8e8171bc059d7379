"""Intervals that overlap, side by side in as few lanes as will do."""

import heapq
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def lanes(items: Iterable[T], span: Callable[[T], tuple[float, float]]) -> list[tuple[int, T]]:
    """Give each item the lowest lane that is free from its start on.

    Args:
        items: in any order.
        span: where an item starts and ends.

    Returns:
        Items with the numbers of their lanes, from 0, in the order of their starts.
    """
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
