"""Detection of asyncio tasks that users' code starts within a block and leaves running after it.

Each block stores a mark in a context variable, and each task has a copy of the context in which it was created. If the
mark is still referenced after its block, a task may be left; only then are all tasks searched. Work that may
outlive a call, such as an actor, runs in a context without a mark.
"""

import asyncio
import gc
import time
from contextvars import Context, ContextVar

_SHARE = 0.01
"""Maximum share of the time that may be spent on searches for left-over tasks, in a process with many tasks."""
_QUICK = 0.001
"""Seconds that a search for left-over tasks may take without delaying the next search."""


class BatchMark:
    """Mark of a block; the tasks of the block, and those that they create, have it in their contexts."""

    __slots__ = ("__weakref__",)  # after the block, only contexts hold strong references to the mark


current_batch_mark: ContextVar[BatchMark | None] = ContextVar("callboard_block", default=None)
_look_again = 0.0
"""Earliest time (`time.monotonic()`) of the next search for left-over tasks."""


def find_left_tasks(batch_mark: BatchMark) -> list[tuple["asyncio.Task[object]", Context]]:
    """Return the left-over tasks of a block that has ended, except cancelled tasks and tasks of a task group.

    Each comes with its context. A search that takes long delays the next one, which returns nothing.
    """
    global _look_again
    if (since := time.monotonic()) < _look_again:
        return []
    left_over = [
        (task, context)
        for task in asyncio.all_tasks()
        if not task.cancelling()
        and not _is_owned(task)
        and (context := _context_of(task)) is not None
        and context.get(current_batch_mark) is batch_mark
    ]
    if (took := time.monotonic() - since) > _QUICK:
        _look_again = since + took / _SHARE
    return left_over


def without_mark(context: Context) -> Context:
    """Remove the mark of a block from a context, for tasks that may outlive the block; return the context."""
    context.run(current_batch_mark.set, None)
    return context


def _is_owned(task: "asyncio.Task[object]") -> bool:
    """Return whether the task belongs to a task group of anyio or asyncio, which waits for the task."""
    # No public API tells. anyio wraps the coroutine in one of its own; `asyncio.TaskGroup` adds a done callback.
    frame = getattr(task.get_coro(), "cr_frame", None)
    if frame is not None and str(frame.f_globals.get("__name__", "")).startswith("anyio."):
        return True
    callbacks = [callback for callback, *_ in getattr(task, "_callbacks", None) or ()]
    return any(isinstance(getattr(callback, "__self__", None), asyncio.TaskGroup) for callback in callbacks)


def _context_of(task: "asyncio.Task[object]") -> Context | None:
    """Return the context of a task, or `None` if the context is not found, which is possible before Python 3.12."""
    if (getter := getattr(task, "get_context", None)) is not None:
        context: Context | None = getter()
        return context
    return next((referent for referent in gc.get_referents(task) if isinstance(referent, Context)), None)
