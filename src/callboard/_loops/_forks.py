"""Callbacks for forked child processes, on systems that fork."""

import os
from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[[], object])


def after_fork_in_child(fn: F) -> F:
    """Call `fn` in each forked child process, except on Windows, which does not fork; return `fn`, as a decorator."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=fn)
    return fn
