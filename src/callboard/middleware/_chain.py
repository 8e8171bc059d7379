"""The chain around a tool call: links from the outermost to the innermost, built once for a node."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.types import Command

from callboard.middleware._elsewhere import AsyncioLink, SyncLink

CallNext = Callable[[Any], Awaitable[Any]]
Link = Callable[[Any, CallNext], Awaitable[Any]]
"""Takes the request and what comes next; may call that any number of times, also concurrently."""


def wrapper_link(wrap: Callable[..., Any] | None, awrap: Callable[..., Any] | None) -> Link | None:
    """The one link for LangGraph's two wrappers; the async one goes first, the sync one runs in a thread.

    Raises:
        TypeError: if one of them is no function.
    """
    for name, value in (("wrap_tool_call", wrap), ("awrap_tool_call", awrap)):
        if value is not None and not callable(value):
            raise TypeError(f"{name} takes a function of a request and what executes it, got {value!r}")
    if awrap is not None:
        return awrap
    return SyncLink(wrap) if wrap is not None else None


def chain_of(middleware: Sequence[object]) -> Link | None:
    """One link for all of them, the first outermost; `None` for none.

    Raises:
        TypeError: for an object that is no link.
    """
    if not middleware:
        return None
    return _Chain([(link_name(one), as_link(one)) for one in middleware])


def link_name(one: object) -> str:
    """What a link is called in errors."""
    return getattr(one, "__qualname__", None) or type(one).__qualname__


def as_link(one: object) -> Link:
    """An async function of what may be a link: a function, sync or async, or an object with wrappers.

    Raises:
        TypeError: if it is none of these.
    """
    awrap, wrap = _own_method(one, "awrap_tool_call"), _own_method(one, "wrap_tool_call")
    if awrap is not None:
        # What LangChain ships was written for asyncio; our own and the user's run where the call runs.
        return AsyncioLink(awrap) if _is_langchains(one) else awrap
    if wrap is not None:
        return SyncLink(wrap)
    if not inspect.isclass(one) and callable(one):
        return one if _is_async(one) else SyncLink(one)
    raise TypeError(
        "A link is a function (request, call_next), sync or async, or an object with awrap_tool_call or "
        f"wrap_tool_call; got {one!r}"
    )


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def _is_langchains(one: object) -> bool:
    return any(cls.__name__ == "AgentMiddleware" and cls.__module__.startswith("langchain.") for cls in type(one).__mro__)


def _own_method(one: object, name: str) -> Callable[..., Any] | None:
    """A wrapper that the object really has; LangChain's base class has both, and both only raise."""
    if inspect.isclass(one):
        return None
    for cls in type(one).__mro__:
        if name in vars(cls):
            is_base = cls.__name__ == "AgentMiddleware" and cls.__module__.startswith("langchain.")
            return None if is_base else getattr(one, name)
    return None


class _Chain:
    def __init__(self, links: Sequence[tuple[str, Link]]) -> None:
        self._links = links

    async def __call__(self, request: Any, call_next: CallNext) -> Any:
        return await self._from(0, call_next, request)

    async def _from(self, position: int, innermost: CallNext, request: Any) -> Any:
        if position == len(self._links):
            return await innermost(request)
        name, link = self._links[position]
        return _checked(name, await link(request, partial(self._from, position + 1, innermost)))


def _checked(name: str, output: object) -> object:
    """The output of a link, if it is one.

    Raises:
        TypeError: naming the link, if it is not.
    """
    items = output if isinstance(output, list) and output else [output]
    if not all(isinstance(item, (ToolMessage, Command)) for item in items):
        raise TypeError(f"The link {name} returned {output!r}; it has to return a ToolMessage, a Command or a list of them")
    return output
