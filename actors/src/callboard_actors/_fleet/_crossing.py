"""Waits in any event loop for what happens in the thread of a desk."""

import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import anyio
import sniffio
from anyio.lowlevel import current_token

T = TypeVar("T")


class News:
    """Wakes one task again and again; from any thread."""

    def __init__(self) -> None:
        native: Any = current_token().native_token
        is_trio = sniffio.current_async_library() == "trio"
        self._post: Callable[[Callable[[], object]], object] = (
            native.run_sync_soon if is_trio else native.call_soon_threadsafe
        )
        self._event = anyio.Event()

    def tell(self) -> None:
        """Wake the task that waits; from any thread."""
        with contextlib.suppress(RuntimeError):  # its loop is over, and nobody waits
            self._post(self._set)

    def _set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Wait until somebody has called `tell` since the last time."""
        await self._event.wait()
        self._event = anyio.Event()


class Answer(Generic[T]):
    """One result that is made in another thread."""

    def __init__(self) -> None:
        self._news = News()
        self._found: list[T] = []
        self._failed: BaseException | None = None

    def give(self, value: T) -> None:
        self._found.append(value)
        self._news.tell()

    def fail(self, error: BaseException) -> None:
        self._failed = error
        self._news.tell()

    async def wait(self) -> T:
        """Wait in a task of any event loop for what the thread of the desk will find.

        Raises:
            Exception: what it failed of.
        """
        while not self._found and self._failed is None:
            await self._news.wait()
        if self._failed is not None:
            raise self._failed
        return self._found[0]
