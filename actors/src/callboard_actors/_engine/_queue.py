"""Queue of idle workers and of calls that wait for a worker, in FIFO order."""

import math
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

import anyio

_Worker = TypeVar("_Worker")


class _Waiting(Generic[_Worker]):
    """Call that waits for a worker."""

    def __init__(self) -> None:
        self.told = anyio.Event()
        self.worker: _Worker | None = None

    def tell(self, worker: _Worker | None) -> None:
        self.worker = worker
        self.told.set()


class Idle(Generic[_Worker]):
    """FIFO queue that pairs idle workers with waiting calls.

    Args:
        most: number of workers that may be taken at a time; further ones are spare.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self._taken = set[_Worker]()
        self._workers = deque[_Worker]()
        self._calls = deque[_Waiting[_Worker]]()

    def put(self, worker: _Worker) -> None:
        """Assign a worker to the call that has waited longest, or keep it as idle."""
        # Spare workers are taken last, so that the ones in use stay the same.
        first = worker in self._taken and len(self._workers) + len(self._taken) > self._most
        self._taken.discard(worker)
        (self._workers.appendleft if first else self._workers.append)(worker)
        self._pair()

    def _pair(self) -> None:
        while self._calls and self._workers and len(self._taken) < self._most:
            self._taken.add(worker := self._workers.popleft())
            self._calls.popleft().tell(worker)

    async def take(self) -> _Worker | None:
        """Wait for an idle worker and return it; return `None` if `turn_away` was called."""
        if self._workers and not self._calls and len(self._taken) < self._most:
            self._taken.add(worker := self._workers.popleft())
            return worker
        call = _Waiting[_Worker]()
        self._calls.append(call)
        try:
            await call.told.wait()
        except BaseException:
            # Cancelled after a worker was assigned: pass it on. Otherwise it would stay idle for ever, in no queue.
            if call.worker is not None:
                self.put(call.worker)
            elif not call.told.is_set():
                self._calls.remove(call)
            raise
        return call.worker

    def take_spare(self) -> _Worker | None:
        """Remove and return one idle worker if the queue has more workers than `most`; return `None` otherwise."""
        return self._workers.pop() if self._workers and len(self._workers) + len(self._taken) > self._most else None

    def __contains__(self, worker: object) -> bool:
        return worker in self._workers

    def __len__(self) -> int:
        """Return the number of idle workers."""
        return len(self._workers)

    def forget(self, worker: _Worker) -> None:
        """Remove a worker that has ended, or is about to end, from this queue."""
        self._taken.discard(worker)
        with suppress(ValueError):
            self._workers.remove(worker)
        self._pair()

    def turn_away(self) -> None:
        """Wake all waiting calls without a worker, and remove the idle workers from this queue."""
        self._workers.clear()
        self._taken.clear()
        while self._calls:
            self._calls.popleft().tell(None)
