"""Background tasks that outlive their callers."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

import anyio
import sniffio

_tasks: set[asyncio.Task[None]] = set()
"""Running background tasks; the event loop itself keeps only weak references to tasks."""


def spawn(work: Callable[[], Coroutine[Any, Any, None]], name: str, context: Context | None = None) -> None:
    """Start `work` as a background task of the running event loop; `work` must not raise."""
    context = Context() if context is None else context
    if sniffio.current_async_library() == "trio":
        import trio

        trio.lowlevel.spawn_system_task(work, name=name, context=context)
        return
    task = asyncio.get_running_loop().create_task(work(), name=name, context=context)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def finish(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run `work` to its end even if the caller is cancelled; `work` must not raise."""
    over = anyio.Event()

    async def run() -> None:
        try:
            await work()
        finally:
            over.set()

    spawn(run, name)
    # On asyncio, a call whose grace is over is cancelled again, and no shield of anyio withstands that: the work then
    # goes on without its caller.
    with anyio.CancelScope(shield=True):
        await over.wait()
