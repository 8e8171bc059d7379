"""A task that belongs to nobody who is running: those who asked for it may end before it does."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

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
