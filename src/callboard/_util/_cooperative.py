"""Long computations in the event loop, which pause regularly to let other tasks run.

A computation is a generator that yields after each portion. Its caller decides whether other tasks run there.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar, cast

from anyio.lowlevel import checkpoint

T = TypeVar("T")
R = TypeVar("R")

Steps = Generator[None, None, R]

PORTION = 1000
"""Number of calls, or of argument values, to process in one portion. A portion takes one or two milliseconds."""


async def in_portions(steps: Steps[R]) -> R:
    """Run a generator to its end and return its result; let other tasks run each time that the generator yields."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: R = end.value  # no `cast`, which would be one more function for each batch
            return result
        await checkpoint()


def at_once(steps: Steps[R]) -> R:
    """Run a generator to its end without a pause, and return its result. For callers that cannot await."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("R", end.value)


def each(fn: Callable[[T], R], items: Sequence[T]) -> Steps[list[R]]:
    """Apply a function to each item, and return a list of the results; yield regularly, so that other tasks can run.

    A generator computation for `in_portions` or `at_once`.
    """
    found = [*map(fn, items[:PORTION])]
    for start in range(PORTION, len(items), PORTION):
        yield
        found += map(fn, items[start : start + PORTION])
    return found
