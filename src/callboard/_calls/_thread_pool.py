"""So many worker threads and no more, for the work of one middleware that would hold the event loop."""

from collections.abc import Callable
from typing import TypeVar

from callboard._calls._limits import Gate
from callboard._loops._current import current_loop
from callboard._loops._levels import Levels
from callboard._loops._threads import run_in_thread
from callboard._types import Limit

T = TypeVar("T")

THREADS = 40
"""How many a middleware takes that computes, or asks the disk."""


class _ThreadPlace:
    """A thread's place at a gate; kept until the thread has really ended."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.is_abandoned = False

    def thread_abandoned(self) -> None:
        self.is_abandoned = True

    def thread_ended(self) -> None:
        self._gate.leave()


class Threads:
    """So many worker threads and no more; one that outlives its call keeps its place until it ends.

    What runs in one of them may come back here, by way of an agent: each such level has as many of its own.

    Args:
        name: what they are called in warnings.
        most: how many.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._gates = Levels(lambda: Gate(Limit(concurrency=most), f"the threads of {name}"))

    async def run(self, fn: Callable[[], T]) -> T:
        """Run `fn` in a thread, with the caller's context variables, and return its result."""
        loop, gate = current_loop(), self._gates.here()
        await gate.enter(loop)
        place = _ThreadPlace(gate)
        try:
            with self._gates.below():
                return await run_in_thread(loop, fn, self._name, place)
        finally:
            if not place.is_abandoned:
                place.thread_ended()
