"""A task that belongs to nobody who is running: those who asked for it may end before it does."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

import anyio
import sniffio

_tasks: set[asyncio.Task[None]] = set()
"""The event loop alone would not keep them."""


def spawn(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run something in the event loop that runs here, without anybody's context; it must not raise."""
    if sniffio.current_async_library() == "trio":
        import trio

        trio.lowlevel.spawn_system_task(work, name=name, context=Context())
        return
    task = asyncio.get_running_loop().create_task(work(), name=name, context=Context())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def finish(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run something that must not raise to its end, although the caller may be cancelled.

    On asyncio a call whose grace is over is cancelled again, which no shield of anyio's withstands. The work then goes
    on without its caller.
    """
    over = anyio.Event()

    async def run() -> None:
        try:
            await work()
        finally:
            over.set()

    spawn(run, name)
    with anyio.CancelScope(shield=True):
        await over.wait()
