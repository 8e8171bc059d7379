"""Helpers for users' code: the line that a warning should point to, and whether a function is async."""

import inspect
import sys
from types import FrameType

_PACKAGE = __name__.partition(".")[0]


def user_stacklevel() -> int:
    """Return the `stacklevel` that makes a warning of the caller point to the nearest line of a user's code."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level


def is_async(fn: object) -> bool:
    """Return whether a function or a callable object is async."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004
