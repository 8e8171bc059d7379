"""Workers that have nothing to do, and calls that wait for one, first come, first served."""

from collections import deque

import anyio

from callboard_actors.process._held_worker import HeldWorker


class _Waiting:
    """A call that waits for a worker, and which it has been given."""

    def __init__(self) -> None:
        self.told = anyio.Event()
        self.worker: HeldWorker | None = None

    def tell(self, worker: HeldWorker | None) -> None:
        self.worker = worker
        self.told.set()


class Idle:
    """Some wait for others: there are workers here, or calls, or nobody."""

    def __init__(self) -> None:
        self._workers = deque[HeldWorker]()
        self._calls = deque[_Waiting]()

    def put(self, worker: HeldWorker) -> None:
        """Let the next call have it."""
        if self._calls:
            self._calls.popleft().tell(worker)
        else:
            self._workers.append(worker)

    async def take(self) -> HeldWorker | None:
        """Wait for one; `None` if it is no use to wait."""
        if self._workers:
            return self._workers.popleft()
        call = _Waiting()
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

    def turn_away(self) -> None:
        """Tell all calls that it is no use to wait, and forget the workers."""
        self._workers.clear()
        while self._calls:
            self._calls.popleft().tell(None)
