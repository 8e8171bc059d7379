"""Stream of a task: an async iterator over the items that a task of its own puts into a queue."""

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar

from anyio import Lock, Semaphore

from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import Scope, Spawned
from callboard._loops._side_tasks import end_task
from callboard._util._errors import raise_first

T = TypeVar("T")


class Outbox(Generic[T]):
    """Queue between a task and the reader of its stream; filled from any thread, read by one task."""

    def __init__(self) -> None:
        self._loop = current_loop()
        self._items: deque[T] = deque()
        self._wakeup = self._loop.wakeup()
        # Guards all fields: callback handlers put chunks from worker threads.
        self._lock = threading.Lock()
        self._closed = False
        self._reader_waits = False  # true while the reader waits for an item
        self._wakeup_of_task = self._loop.wakeup()

    def put(self, item: T) -> None:
        with self._lock:
            self._items.append(item)
            self._wakeup.set()

    def close(self) -> None:
        """Close the queue: `get` still returns the items in the queue, and then `None`."""
        with self._lock:
            self._closed = True
            self._wakeup.set()

    async def get(self) -> T | None:
        while True:
            with self._lock:
                self._reader_waits = False
                if self._items:
                    return self._items.popleft()
                if self._closed:
                    return None
                # A new wakeup under the lock: a `put` after this line sets it, so no item is missed.
                self._wakeup = self._loop.wakeup()
                self._reader_waits = True
                self._wakeup_of_task.set()
            await self._wakeup.wait()

    async def wait_for_reader(self) -> None:
        """Wait until the reader has taken all items and asks for the next one."""
        while True:
            with self._lock:
                if self._reader_waits and not self._items:
                    return
                self._wakeup_of_task = self._loop.wakeup()
            await self._wakeup_of_task.wait()


class Window:
    """Bounded number of results that are being made, or that the reader of a stream has not taken; FIFO."""

    def __init__(self, size: int) -> None:
        self._permits = Semaphore(size, fast_acquire=True)
        self._turn = Lock(fast_acquire=True)

    async def acquire(self) -> None:
        """Wait for a permit, in the order of the calls of this method."""
        # Only the first in the queue waits for a permit: trio wakes tasks in any order.
        async with self._turn:
            await self._permits.acquire()

    def release(self) -> None:
        """Give a permit back: the reader has taken the result, or there is none."""
        self._permits.release()


class TaskItems(Generic[T]):
    """Async iterator over the items that a function puts while it runs in a task of its own; then its error is raised.

    The task starts when the first item is asked for. `aclose` cancels it, and waits for its end.
    """

    # No async generator: the generator that reads it awaits `aclose`. If both were left to the garbage collector, it
    # would close both at once, and the outer one would fail, because the inner one "is already running".

    def __init__(self, run: Callable[[Outbox[T]], Awaitable[object]]) -> None:
        self._run = run
        self._outbox: Outbox[T] = Outbox()
        self._errors: list[BaseException] = []
        self._task: Spawned | None = None
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._is_over:
            raise StopAsyncIteration
        if self._task is None:
            # A task beside the reader: a generator that reads must not hold a cancel scope over a `yield`.
            self._task = current_loop().spawn(self._run_in_scope, DEFAULT_GRACE)
        try:
            item = await self._outbox.get()
        except BaseException:
            await self.aclose()
            raise
        if item is not None:
            return item
        self._is_over = True
        await self._task.wait()
        raise_first(self._errors)
        raise StopAsyncIteration

    async def _run_in_scope(self, scope: Scope) -> None:
        try:
            with scope:
                await self._run(self._outbox)
        except StopAsyncIteration as error:  # as itself it would end the reader's loop in silence
            self._errors.append(RuntimeError("the task of a stream raised StopAsyncIteration"))
            self._errors[-1].__cause__ = error
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._outbox.close()

    async def aclose(self) -> None:
        """Cancel the task, and wait for its end; without an effect after the last item."""
        if self._is_over:
            return
        self._is_over = True
        if self._task is not None:
            await end_task(self._task)
