"""Callbacks for forked child processes, on systems that fork."""

import os
from collections.abc import Callable


def after_fork_in_child(fn: Callable[[], object]) -> None:
    """Call `fn` in each forked child process; do nothing on Windows, which does not fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=fn)
