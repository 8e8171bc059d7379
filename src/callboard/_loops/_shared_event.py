"""Event for tasks of several event loops."""

import threading

from callboard._loops._current import current_loop
from callboard._loops._protocol import Wakeup


class SharedEvent:
    """Event that tasks of any event loop wait for, and that any thread sets; it stays set."""

    __slots__ = ("_is_set", "_lock", "_wakeups")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._wakeups: list[Wakeup] | None = None  # made for the first task that waits: most events have none

    @property
    def is_set(self) -> bool:
        return self._is_set

    @property
    def has_waiters(self) -> bool:
        return bool(self._wakeups)

    def set(self) -> None:
        with self._lock:
            self._is_set = True
            for wakeup in self._wakeups or ():
                wakeup.set()

    async def wait(self) -> None:
        with self._lock:
            if self._is_set:
                return
            wakeup = current_loop().wakeup()
            if self._wakeups is None:
                self._wakeups = []
            wakeups = self._wakeups
            wakeups.append(wakeup)
        try:
            await wakeup.wait()
        finally:
            # A task that is cancelled leaves nothing behind, however long the event is not set.
            with self._lock:
                wakeups.remove(wakeup)
