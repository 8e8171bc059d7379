"""Worker threads with a maximum number: `WorkerThreads` for one middleware, `ThreadPermits` for one node."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from callboard._calls._gate import Gate
from callboard._calls._limits import Limiter
from callboard._loops._current import current_loop
from callboard._loops._forks import forget_tasks_after_fork
from callboard._loops._threads import PerDepth, StartOrder, run_in_thread
from callboard._records._policies import Limit

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _ThreadPermit:
    """Permit of one worker thread, held until the thread has really ended."""

    gate: Gate
    is_abandoned: bool = False

    def thread_abandoned(self) -> None:
        self.is_abandoned = True

    def thread_ended(self) -> None:
        self.gate.leave()


class WorkerThreads:
    """Bounded number of worker threads. A thread that outlives its call keeps its permit until it ends.

    Args:
        name: name of the owner, for warnings.
        max_threads: number of threads.
    """

    def __init__(self, name: str, max_threads: int = 40) -> None:
        self._name = name
        # A function in such a thread may run an agent that uses the same middleware. With one gate for all depths,
        # all permits could be held by threads that wait for a permit.
        self._gates = PerDepth(lambda: Gate(Limit(concurrency=max_threads), f"the threads of {name}"))

    async def run(self, fn: Callable[[], T]) -> T:
        """Run `fn` in a thread, with the caller's context variables, and return its result."""
        loop, gate = current_loop(), self._gates.here()
        await gate.enter(loop)
        permit = _ThreadPermit(gate)
        try:
            with self._gates.below():
                return await run_in_thread(loop, fn, self._name, permit)
        finally:
            if not permit.is_abandoned:  # otherwise the thread releases the permit at its end
                permit.thread_ended()


class ThreadPermits:
    """Limit of the worker threads of one node, and the attempts whose threads run on after their calls."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.abandoned: set[object] = set()  # added in event loops, removed in the threads: set operations are atomic
        self.forget_tasks()
        forget_tasks_after_fork(self)

    def forget_tasks(self) -> None:
        """Forget all threads: a forked child process has this object, and none of them."""
        self.limiters = PerDepth(lambda: Limiter(Limit(concurrency=self.concurrency), "the worker threads' queue"))
        self.abandoned.clear()
        self.order = StartOrder()  # a thread of the parent that had not begun would let the first one here wait

    def at_least(self, concurrency: int | None) -> "ThreadPermits":
        """Return this object if it allows `concurrency` threads, otherwise a new object that does."""
        if concurrency is None or concurrency <= self.concurrency:
            return self
        wider = ThreadPermits(concurrency)
        wider.abandoned = self.abandoned  # shared: an abandoned thread occupies the process, not one run
        return wider

    @property
    def lost(self) -> str | None:
        """Error text if all worker threads still run although their calls have ended; `None` otherwise."""
        if len(self.abandoned) < self.concurrency:
            return None
        return f"all {self.concurrency} worker threads are held by calls that were given up and still run"
