"""Separate resources for each depth of nesting, against deadlocks of nested calls.

A sync function in a worker thread may run an agent and wait for it. If the agent's functions shared its thread limit,
all permits could be held by functions that wait for a permit. So each depth of nesting has a limit of its own.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

_held: ContextVar[tuple[object, ...]] = ContextVar("callboard_levels_held", default=())


class Levels(Generic[T]):
    """List of equal resources, one for each depth of nesting; `make` creates the next one on demand."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._lock = threading.Lock()

    def here(self) -> T:
        """Return the resource for the current depth."""
        level = _held.get().count(self)
        if level >= len(self._made):
            # Checked again under the lock: two threads must not create two limits for one depth.
            with self._lock:
                while level >= len(self._made):
                    self._made.append(self._make())
        return self._made[level]

    @contextmanager
    def below(self) -> Generator[None]:
        """Run the block, and everything that it starts, one level deeper."""
        token = _held.set((*_held.get(), self))
        try:
            yield
        finally:
            _held.reset(token)
