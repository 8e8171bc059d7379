"""Tasks of asyncio that users' code starts within a block and leaves behind when the block has ended.

Each block has a mark in a context variable, and a task has a copy of the context in which it was created. So a mark
that is still referred to after its block says that something may be left; only then are the tasks looked through. What
is made to outlive a call, such as the life of an actor, runs without a mark.
"""

import asyncio
import gc
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar

_SHARE = 0.01
"""Share of the time that may be spent on looking, where there are many tasks."""
_QUICK = 0.001
"""Seconds that one look may take at any time."""


class _Mark:
    """Stands in the contexts of all that is started within one block."""

    __slots__ = ("__weakref__",)


_mark: ContextVar[_Mark | None] = ContextVar("callboard_block", default=None)
_look_again = 0.0
"""When, in seconds of `time.monotonic()`, the tasks may be looked through again."""


class LeftTasks:
    """The tasks that were started within a block, and have not ended."""

    __slots__ = ("_mark",)

    def __init__(self) -> None:
        self._mark: weakref.ref[_Mark] | None = None

    @contextmanager
    def marked(self) -> Generator[None]:
        """A block in which the tasks are created that the users' code runs in."""
        mark = _Mark()
        token = _mark.set(mark)
        self._mark = weakref.ref(mark)
        try:
            yield
        finally:
            _mark.reset(token)

    def found(self) -> list[tuple["asyncio.Task[object]", Context]]:
        """Return the tasks that are left, with their contexts; none that is cancelled, or has a task group."""
        global _look_again
        mark = None if self._mark is None else self._mark()
        if mark is None or (since := time.monotonic()) < _look_again:
            return []
        found = [
            (task, context)
            for task in asyncio.all_tasks()
            if not task.cancelling()
            and not _is_owned(task)
            and (context := _context_of(task)) is not None
            and context.get(_mark) is mark
        ]
        if (took := time.monotonic() - since) > _QUICK:
            _look_again = since + took / _SHARE
        return found


def unmarked(context: Context) -> Context:
    """Take the mark out of a context: what runs in it may outlive the block."""
    context.run(_mark.set, None)
    return context


def _is_owned(task: "asyncio.Task[object]") -> bool:
    """Return whether a task group of anyio or asyncio waits for the task; of that, only their own marks tell."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    if frame is not None and str(frame.f_globals.get("__name__", "")).startswith("anyio."):
        return True
    callbacks = [one[0] for one in getattr(task, "_callbacks", None) or ()]
    return any(isinstance(getattr(one, "__self__", None), asyncio.TaskGroup) for one in callbacks)


def _context_of(task: "asyncio.Task[object]") -> Context | None:
    """The context of a task. Before Python 3.12 only the garbage collector knows it."""
    if (getter := getattr(task, "get_context", None)) is not None:
        found: Context | None = getter()
        return found
    return next((one for one in gc.get_referents(task) if isinstance(one, Context)), None)
