"""Warning about asyncio tasks that a tool has created and that outlive its batch."""

import asyncio
import warnings

from callboard._calls._attempt import Attempt
from callboard._calls._progress import reporter
from callboard._loops._left_tasks import LeftTasks
from callboard.exceptions import AbandonedTaskWarning

_told: set[tuple[str, str]] = set()
"""Pairs of tool and coroutine function that were warned about."""


def warn_about_left_tasks(left: LeftTasks) -> None:
    """Warn about each left task, once for each pair of tool and coroutine function."""
    for task, context in left.found():
        # The task has a copy of the context in which it was created, and so the attempt that created it.
        owner = context.get(reporter)
        tool = owner.tool if isinstance(owner, Attempt) else str(getattr(owner, "name", "a middleware"))
        call_id = owner.owner.id if isinstance(owner, Attempt) else getattr(owner, "id", None)
        function = getattr(task.get_coro(), "__qualname__", "")
        if not function or (tool, function) in _told:
            continue
        _told.add((tool, function))
        warnings.warn(
            f"tool {tool!r} (call {call_id!r}) left a task behind that outlives its batch: {task.get_name()!r}, "
            f"{function}(){_place(task)}. It is neither cancelled nor awaited; await it in the tool, such as in an "
            "asyncio.TaskGroup, or start it in an actor, which may outlive calls",
            AbandonedTaskWarning,
            stacklevel=2,
        )


def _place(task: "asyncio.Task[object]") -> str:
    stack = task.get_stack(limit=1)
    return f" at {stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else ""
