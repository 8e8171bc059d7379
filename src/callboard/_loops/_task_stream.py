"""Stream of a task: an async generator that yields the items that a task of its own puts into a queue."""

import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeVar

from anyio import Lock, Semaphore

from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import Scope
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


async def items_of(run: Callable[[Outbox[T]], Awaitable[object]]) -> AsyncGenerator[T]:
    """Start `run` in a task of its own and yield the items that it puts; at the end, raise the error of `run`."""
    outbox: Outbox[T] = Outbox()
    loop = current_loop()
    errors: list[BaseException] = []

    async def child(scope: Scope) -> None:
        try:
            with scope:
                await run(outbox)
        except BaseException as error:
            errors.append(error)
        finally:
            outbox.close()

    # A task beside the generator: a generator must not hold a cancel scope over a `yield`.
    task = loop.spawn(child, DEFAULT_GRACE)
    try:
        while (item := await outbox.get()) is not None:
            yield item
    except BaseException:
        await end_task(task)
        raise
    await task.wait()
    raise_first(errors)
