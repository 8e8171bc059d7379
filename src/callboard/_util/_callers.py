"""Helpers for users' code: the line that a warning should point to, and whether a function is async."""

import inspect
import sys
import warnings
from types import FrameType

_NOT_OF_USERS = {
    *("callboard", "callboard_actors", "langgraph", "langchain", "langchain_core"),
    *("anyio", "asyncio", "uvloop", "trio", "outcome", "threading", "concurrent", "contextlib", "functools"),
}
"""Packages whose frames are between a user's line and callboard: a task's frames end in its event loop."""


def warn_user(text: str, category: type[Warning]) -> None:
    """Issue a warning that points to the nearest line of a user's code.

    In a task, this is the line that runs the event loop. In a worker thread, it is the line that calls this function.
    """
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _NOT_OF_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=2 if frame is None else level)


def is_plain_function(value: object) -> bool:
    """Return whether a value can be called and is not async."""
    return callable(value) and not is_async(value)


def check_plain_function(option: str, function: object, argument: str) -> None:
    """Raise `TypeError` for an option that is no plain function; `argument` describes what it is called with."""
    if not is_plain_function(function):
        raise TypeError(f"{option} takes a plain function of {argument}, got {function!r}")


def is_async(fn: object) -> bool:
    """Return whether a function or a callable object is async."""
    call_method = getattr(type(fn), "__call__", None)  # noqa: B004 (`callable` does not say whether it is async)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call_method)
