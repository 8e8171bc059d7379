"""Background work that runs during a block of code and ends with it."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from callboard._loops._current import current_loop
from callboard._loops._protocol import Scope

_log = logging.getLogger("callboard")


@asynccontextmanager
async def beside(work: Callable[[], Awaitable[object]] | None) -> AsyncGenerator[None]:
    """Run `work` in a task during the block, and cancel it at the end; its errors are logged only."""
    if work is None:
        yield
        return
    loop = current_loop()

    async def child(scope: Scope) -> None:
        try:
            with scope:
                await work()
        except Exception:
            _log.exception("%r failed", work)

    task = loop.spawn(child, 0.0)  # no grace: the block must not wait for the clean-up of its background work
    try:
        yield
    finally:
        task.cancel()
        # Shielded: if the block was cancelled, the work must still have ended before the block is left.
        with loop.shield(float("inf")):
            await task.wait()
