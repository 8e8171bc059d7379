"""Workers that have nothing to do, and calls that wait for one, first come, first served."""

from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

import anyio

_Worker = TypeVar("_Worker")


class _Waiting(Generic[_Worker]):
    """A call that waits for a worker, and which it has been given."""

    def __init__(self) -> None:
        self.told = anyio.Event()
        self.worker: _Worker | None = None

    def tell(self, worker: _Worker | None) -> None:
        self.worker = worker
        self.told.set()


class Idle(Generic[_Worker]):
    """Some wait for others: there are workers here, or calls, or nobody."""

    def __init__(self) -> None:
        self._workers = deque[_Worker]()
        self._calls = deque[_Waiting[_Worker]]()

    def put(self, worker: _Worker) -> None:
        """Give a worker to the call that has waited longest, or keep it for the next one."""
        if self._calls:
            self._calls.popleft().tell(worker)
        else:
            self._workers.append(worker)

    async def take(self) -> _Worker | None:
        """Wait for one; `None` if it is no use to wait."""
        if self._workers:
            return self._workers.popleft()
        call = _Waiting[_Worker]()
        self._calls.append(call)
        try:
            await call.told.wait()
        except BaseException:
            if call.worker is not None:
                self.put(call.worker)
            elif not call.told.is_set():
                self._calls.remove(call)
            raise
        return call.worker

    def __contains__(self, worker: object) -> bool:
        return worker in self._workers

    def __len__(self) -> int:
        """How many workers wait for a call."""
        return len(self._workers)

    def forget(self, worker: _Worker) -> None:
        """Give this worker to no call any more."""
        with suppress(ValueError):
            self._workers.remove(worker)

    def turn_away(self) -> None:
        """Tell all calls that it is no use to wait, and forget the workers."""
        self._workers.clear()
        while self._calls:
            self._calls.popleft().tell(None)
