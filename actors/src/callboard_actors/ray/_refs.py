"""What Ray promises, awaited in any event loop: Ray itself knows asyncio only."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import anyio
import sniffio
from anyio.lowlevel import current_token


class Bell:
    """Wakes up one task in this event loop, whenever one of the references that it watches has its value."""

    def __init__(self) -> None:
        self._loop: Any = current_token().native_token
        self._is_trio = sniffio.current_async_library() == "trio"
        self._rung = anyio.Event()

    def watch(self, ref: Any) -> Future[Any]:
        """Ring when a reference has its value; the future is then done."""
        future: Future[Any] = ref.future()
        future.add_done_callback(lambda _: self._post(self.ring))
        return future

    def ring(self) -> None:
        """Wake it up, in this event loop."""
        self._rung.set()

    def _post(self, fn: Callable[[], object]) -> None:
        """Run a function in the event loop, from a thread of Ray's, which must not be held up."""
        try:
            if self._is_trio:
                self._loop.run_sync_soon(fn)
            else:
                self._loop.call_soon_threadsafe(fn)
        except RuntimeError:
            pass  # the loop is over; nobody waits

    async def wait(self) -> None:
        """Wait until it rings, or has rung since the last time."""
        await self._rung.wait()
        self._rung = anyio.Event()


async def value_of(ref: Any) -> Any:
    """Wait for the value of a reference; raises what Ray has in its place."""
    bell = Bell()
    future = bell.watch(ref)
    await bell.wait()
    return future.result()
