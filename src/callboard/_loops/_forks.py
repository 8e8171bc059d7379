"""Callbacks for forked child processes, on systems that fork."""

import os
from collections.abc import Callable
from typing import Protocol, TypeVar
from weakref import WeakSet

F = TypeVar("F", bound=Callable[[], object])


def after_fork_in_child(fn: F) -> F:
    """Call `fn` in each forked child process, except on Windows, which does not fork; return `fn`, as a decorator."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=fn)
    return fn


class TaskOwner(Protocol):
    """Protocol of objects that know tasks of this process."""

    def forget_tasks(self) -> None:
        """Forget all tasks: they are those of the parent process."""
        ...


_task_owners: WeakSet[TaskOwner] = WeakSet()


def forget_tasks_after_fork(owner: TaskOwner) -> None:
    """Call `owner.forget_tasks()` in each forked child process, as long as `owner` lives."""
    _task_owners.add(owner)


@after_fork_in_child
def _forget_tasks() -> None:
    for owner in list(_task_owners):
        owner.forget_tasks()
