"""Something that goes on beside a block of code, and ends with it."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from callboard._loops._current import current_loop
from callboard._loops._protocol import Scope

_log = logging.getLogger("callboard")


@asynccontextmanager
async def beside(work: Callable[[], Awaitable[object]] | None) -> AsyncGenerator[None]:
    """Do some work while the block runs; what it raises is logged, and does not concern the block.

    Args:
        work: ends when it is cancelled; `None` for nothing.
    """
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

    task = loop.spawn(child, 0.0)
    try:
        yield
    finally:
        task.cancel()
        with loop.shield(float("inf")):
            await task.wait()
