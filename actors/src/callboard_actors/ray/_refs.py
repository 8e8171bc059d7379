"""Object references of Ray, awaited on asyncio and trio; Ray itself supports asyncio only."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import anyio
import sniffio
from anyio.lowlevel import current_token


class Bell:
    """Wakes one task of this event loop whenever a watched reference is resolved."""

    def __init__(self) -> None:
        self._loop: Any = current_token().native_token
        self._is_trio = sniffio.current_async_library() == "trio"
        self._rung = anyio.Event()

    def watch(self, ref: Any) -> Future[Any]:
        """Watch a reference; return a future that is done when the bell rings for it."""
        future: Future[Any] = ref.future()
        future.add_done_callback(lambda _: self._post(self.ring))
        return future

    def ring(self) -> None:
        """Wake the waiting task; call this in its event loop."""
        self._rung.set()

    def _post(self, fn: Callable[[], object]) -> None:
        """Run a function in the event loop; called in Ray's threads, so it must not block."""
        try:
            if self._is_trio:
                self._loop.run_sync_soon(fn)
            else:
                self._loop.call_soon_threadsafe(fn)
        except RuntimeError:
            pass  # the loop is closed, so no task waits

    async def wait(self) -> None:
        """Wait until the bell rings, or return at once if it has rung since the last wait."""
        await self._rung.wait()
        # Replaced after each wait. Callers check their futures afterwards, since one ring may stand for several.
        self._rung = anyio.Event()


async def value_of(ref: Any) -> Any:
    """Wait for a reference and return its value; raise the error that Ray stored instead."""
    bell = Bell()
    future = bell.watch(ref)
    await bell.wait()
    return future.result()
