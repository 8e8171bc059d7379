"""Bridge from the fleet client's thread to tasks of any event loop."""

import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import anyio
import sniffio
from anyio.lowlevel import current_token

T = TypeVar("T")


class ThreadSignal:
    """Repeatable wake-up of one waiting task, callable from any thread. Created in the task's event loop."""

    def __init__(self) -> None:
        native: Any = current_token().native_token
        is_trio = sniffio.current_async_library() == "trio"
        self._post: Callable[[Callable[[], object]], object] = (
            native.run_sync_soon if is_trio else native.call_soon_threadsafe
        )
        # Touched in its own loop only: anyio events are not thread-safe, so other threads go through `_post`.
        self._event = anyio.Event()

    def tell(self) -> None:
        """Wake the waiting task; may be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
            self._post(self._set)

    def _set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Wait until `tell` was called after the previous wait returned."""
        await self._event.wait()
        # Callers change their state before `tell` and read it after `wait`, so a wake-up lost here loses no news.
        self._event = anyio.Event()


class ThreadResult(Generic[T]):
    """Result computed in another thread, for one waiting task."""

    def __init__(self) -> None:
        self._news = ThreadSignal()
        self._found: list[T] = []
        self._failed: BaseException | None = None

    def give(self, value: T) -> None:
        self._found.append(value)
        self._news.tell()

    def fail(self, error: BaseException) -> None:
        self._failed = error
        self._news.tell()

    async def wait(self) -> T:
        """Return the result from the client's thread, or raise the error given to `fail`; waits in any event loop."""
        # A list, because `None` is a possible result. Appending and reading it need no lock.
        while not self._found and self._failed is None:
            await self._news.wait()
        if self._failed is not None:
            raise self._failed
        return self._found[0]
