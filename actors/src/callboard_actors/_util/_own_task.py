"""Background tasks that outlive their callers."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

import anyio
import sniffio

_tasks: set[asyncio.Task[None]] = set()
"""Running background tasks; the event loop itself keeps only weak references to tasks."""


def start_background_task(
    work: Callable[[], Coroutine[Any, Any, None]], name: str, context: Context | None = None
) -> None:
    """Start `work` as a background task of the running event loop; `work` must not raise."""
    context = Context() if context is None else context
    if sniffio.current_async_library() == "trio":
        import trio

        trio.lowlevel.spawn_system_task(work, name=name, context=context)
        return
    task = asyncio.get_running_loop().create_task(work(), name=name, context=context)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def run_to_end(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run `work` to its end even if the caller is cancelled; `work` must not raise."""
    has_ended = anyio.Event()

    async def run_and_report() -> None:
        try:
            await work()
        finally:
            has_ended.set()

    start_background_task(run_and_report, name)
    # On asyncio, a call whose grace is over is cancelled again, and no shield of anyio withstands that: the work then
    # goes on without its caller.
    with anyio.CancelScope(shield=True):
        await has_ended.wait()
