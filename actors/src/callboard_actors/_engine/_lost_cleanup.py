"""Warning for async functions with clean-up that cannot run, because their engine kills the process."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import callboard
from callboard import CallboardWarning, cleanup


def warn_of_lost_cleanup(fn: Callable[..., Any], title: str) -> None:
    """Warn about an async function that shields clean-up with `callboard.cleanup()`.

    Other clean-up, such as closing a connection in a `finally`, is mostly done by the kernel when a process ends.
    `cleanup()` signals that the clean-up matters outside of the process.

    Args:
        fn: the function of a tool, or the class of an actor, whose handlers are cancelled and not killed.
        title: name for the warning.
    """
    function = inspect.unwrap(fn)
    if not inspect.iscoroutinefunction(function) or not _shields(function.__code__, function.__globals__):
        return
    warnings.warn(
        f"{title!r} uses cleanup(), and where it runs its process is killed when its call is cancelled or its time is "
        "over: what is within cleanup() is not run then, nor is any finally. Undo from here what has to be undone, "
        "such as in a middleware, or have the tool run here (no runs_in)",
        CallboardWarning,
        stacklevel=3,
    )


def _shields(code: CodeType, names: dict[str, Any]) -> bool:
    return any(
        names.get(name) is cleanup or (names.get(name) is callboard and "cleanup" in one.co_names)
        for one in _codes(code)
        for name in one.co_names
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
