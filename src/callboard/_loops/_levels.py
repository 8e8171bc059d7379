"""Places for what may wait for more of its own kind.

A sync function in a worker thread may run an agent, and wait for it. Did the functions of that agent need a place
that the first one holds, all places could be held by functions that wait for one. So each level has its own.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

_held: ContextVar[tuple[object, ...]] = ContextVar("callboard_levels_held", default=())


class Levels(Generic[T]):
    """One of something for each level: what runs within the first one finds the second.

    Args:
        make: makes one.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._lock = threading.Lock()

    def here(self) -> T:
        """The one of the level that runs here."""
        level = _held.get().count(self)
        if level >= len(self._made):
            with self._lock:
                while level >= len(self._made):
                    self._made.append(self._make())
        return self._made[level]

    @contextmanager
    def below(self) -> Generator[None]:
        """A block, with all that it starts, that is one level down."""
        token = _held.set((*_held.get(), self))
        try:
            yield
        finally:
            _held.reset(token)
