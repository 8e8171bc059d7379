"""Work of middleware that would hold the event loop, in a few worker threads."""

from collections.abc import Callable
from typing import TypeVar

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import Command

from callboard._calls._limits import Gate
from callboard._loops._current import current_loop
from callboard._loops._levels import Levels
from callboard._loops._threads import run_in_thread
from callboard._types import Limit

T = TypeVar("T")

THREADS = 40
"""Takes the work of a middleware that computes, or asks the disk."""
_LONG = 10_000
"""Characters that a middleware looks at in the event loop; more take milliseconds, and a thread a tenth of one."""
_EACH = 100
"""Characters that take as long as a value by itself."""
_PLAIN = frozenset((int, float, bool, type(None)))


class Place:
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
        place = Place(gate)
        try:
            with self._gates.below():
                return await run_in_thread(loop, fn, self._name, place)
        finally:
            if not place.is_abandoned:
                place.thread_ended()

    async def run_if_long(self, value: object, fn: Callable[[], T]) -> T:
        """Run `fn`, which looks at every character of `value`: in a thread if there are many, else at once."""
        return await self.run(fn) if is_long(value) else fn()


def is_long(value: object) -> bool:
    """Whether the texts in a message, a command, a mapping or a list are many or large."""
    left, values = _LONG, [value]
    while values and left > 0:
        one = values.pop()
        left -= _EACH
        if isinstance(one, str):
            left -= len(one)
        elif isinstance(one, dict):
            values += [*one, *one.values()]
        elif isinstance(one, (list, tuple)):
            values += one
        elif one.__class__ in _PLAIN:
            continue
        elif isinstance(one, BaseMessage):
            values += [one.content, one.artifact if isinstance(one, ToolMessage) else None]
        elif isinstance(one, Command):
            values.append(one.update)
    return left <= 0
