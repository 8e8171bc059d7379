"""`wrap_tool_call` and `awrap_tool_call`, as LangGraph has them: one wrapper around a call."""

from collections.abc import Awaitable, Callable
from typing import Any

from callboard.middleware._sync import SyncLink

CallNext = Callable[[Any], Awaitable[Any]]
Link = Callable[[Any, CallNext], Awaitable[Any]]
"""Takes the request and what comes next; may call that any number of times."""


def wrapper_link(wrap: Callable[..., Any] | None, awrap: Callable[..., Any] | None) -> Link | None:
    """The one link for the two wrappers; the async one goes first, the sync one runs in a thread.

    Raises:
        TypeError: if one of them is no function.
    """
    for name, value in (("wrap_tool_call", wrap), ("awrap_tool_call", awrap)):
        if value is not None and not callable(value):
            raise TypeError(f"{name} takes a function of a request and what executes it, got {value!r}")
    if awrap is not None:
        return awrap
    return SyncLink(wrap) if wrap is not None else None
