"""Blocking functions of a link, in a few worker threads."""

from collections.abc import Callable
from typing import TypeVar

from callboard._current_loop import current_loop
from callboard._limits import Gate
from callboard._threads import run_in_thread
from callboard._types import Limit
from callboard.middleware._elsewhere import _Place

T = TypeVar("T")


class Threads:
    """So many worker threads and no more; one that outlives its call keeps its place until it ends.

    Args:
        name: what they are called in warnings.
        most: how many.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._gate = Gate(Limit(concurrency=most), name)

    async def run(self, fn: Callable[[], T]) -> T:
        """Run `fn` in a thread, with the caller's context variables, and return its result."""
        loop = current_loop()
        await self._gate.enter(loop)
        place = _Place(self._gate)
        try:
            return await run_in_thread(loop, fn, self._name, place)
        finally:
            if not place.is_abandoned:
                place.thread_ended()
