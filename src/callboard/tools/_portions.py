"""Much to do in the event loop, in portions between which others have their turn.

What is to be done is a generator that stops now and then; whoever runs it says whether the others may go on there.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar, cast

from anyio.lowlevel import checkpoint

T = TypeVar("T")
R = TypeVar("R")

Steps = Generator[None, None, R]

PORTION = 1000
"""Calls, or values in arguments, that are looked at in a row; that takes a millisecond or two."""


async def in_portions(steps: Steps[R]) -> R:
    """Do what there is to do, and let the other tasks go on wherever it stops."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("R", end.value)
        await checkpoint()


def at_once(steps: Steps[R]) -> R:
    """Do what there is to do, where nobody can go on meanwhile."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("R", end.value)


def each(fn: Callable[[T], R], items: Sequence[T]) -> Steps[list[R]]:
    """What a function makes of each item."""
    found = [*map(fn, items[:PORTION])]
    for start in range(PORTION, len(items), PORTION):
        yield
        found += map(fn, items[start : start + PORTION])
    return found
