"""Code of users: the line that a warning points to, and the kind of a function."""

import inspect
import sys
from types import FrameType

_PACKAGE = __name__.partition(".")[0]


def user_stacklevel() -> int:
    """Return the `stacklevel` with which a warning, raised by the caller, shows the user's line of code."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    return level


def is_async(fn: object) -> bool:
    """Return whether a function, or an object that can be called like one, is async."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004
