"""The chain around a tool call: links from the outermost to the innermost, built once for a node."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langgraph.types import Command

from callboard.middleware._elsewhere import AsyncioLink, SyncLink
from callboard.middleware._order import warn_of_wrong_order

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


def chain_of(middleware: Sequence[object], wrapper: Link | None) -> Link | None:
    """One link for all of them; `None` for none.

    Args:
        middleware: links, the first outermost.
        wrapper: inside all of them, and as lenient about its output as LangGraph is.

    Raises:
        TypeError: for an object that is no link.
    """
    warn_of_wrong_order(middleware)
    links: list[Link] = [_Named(link_name(one), as_link(one)) for one in middleware]
    if wrapper is not None:
        links.append(wrapper)
    return _Chain(links) if len(links) > 1 else links[0] if links else None


def tools_of(middleware: Sequence[object]) -> list[Any]:
    """The tools that links bring along, as LangChain's middleware does."""
    return [tool for link in middleware for tool in getattr(link, "tools", None) or ()]


def offers_of(middleware: Sequence[object]) -> list[Callable[[Any], bool]]:
    """What asks each link whether a model should be told of a tool now."""
    return [
        cast("Callable[[Any], bool]", link.offers)
        for link in cast("Sequence[Any]", middleware)
        if hasattr(link, "offers")
    ]


def link_name(one: object) -> str:
    """What a link is called in errors."""
    name = getattr(one, "__qualname__", None)
    return name if isinstance(name, str) else type(one).__qualname__


def as_link(one: object) -> Link:
    """An async function of what may be a link: a function, sync or async, or an object with wrappers.

    Raises:
        TypeError: if it is none of these.
    """
    awrap, wrap = _own_method(one, "awrap_tool_call"), _own_method(one, "wrap_tool_call")
    if awrap is not None:
        # What LangChain's middleware awaits is asyncio's; any other runs where the call runs.
        return AsyncioLink(awrap) if _langchain_base(type(one)) else awrap
    if wrap is not None:
        return SyncLink(wrap)
    if not inspect.isclass(one) and callable(one):
        return cast("Link", one) if _is_async(one) else SyncLink(cast("Callable[..., Any]", one))
    raise TypeError(
        "A link is a function (request, call_next), sync or async, or an object with awrap_tool_call or "
        f"wrap_tool_call; got {one!r}"
    )


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def _langchain_base(cls: type) -> type | None:
    """LangChain's AgentMiddleware among the bases of a class, found without importing it."""
    for base in cls.__mro__:
        if base.__name__ == "AgentMiddleware" and base.__module__.startswith("langchain."):
            return base
    return None


def _own_method(one: object, name: str) -> Callable[..., Any] | None:
    """A wrapper that the object really has; those of LangChain's base class only raise."""
    method = getattr(type(one), name, None)
    if method is None or method is getattr(_langchain_base(type(one)), name, None):
        return None
    return cast("Callable[..., Any]", getattr(one, name))


class _Named:
    """A link that is told, by name, when it returns what is no result."""

    __slots__ = ("_link", "_name")

    def __init__(self, name: str, link: Link) -> None:
        self._name = name
        self._link = link

    async def __call__(self, request: Any, call_next: CallNext) -> Any:
        output = await self._link(request, call_next)
        if type(output) is not ToolMessage or output.tool_call_id != request.tool_call["id"]:
            self._check(output, request.tool_call["id"])
        return output

    def _check(self, output: object, call_id: str | None) -> None:
        items: list[object] = output if isinstance(output, list) and output else [output]
        for item in items:
            if not isinstance(item, (ToolMessage, Command)):
                raise TypeError(
                    f"The link {self._name} returned {output!r} for call {call_id!r}; it has to return a "
                    "ToolMessage, a Command or a list of them"
                )
        if isinstance(output, ToolMessage) and output.tool_call_id != call_id:
            raise ValueError(
                f"The link {self._name} returned a message with tool_call_id {output.tool_call_id!r} for "
                f"call {call_id!r}; give it tool_call_id=request.tool_call['id']"
            )


class _Chain:
    """Links, each around the next."""

    __slots__ = ("_first", "_inner")

    def __init__(self, links: Sequence[Link]) -> None:
        self._first = links[0]
        self._inner = links[:0:-1]

    def __call__(self, request: Any, call_next: CallNext) -> Awaitable[Any]:
        for link in self._inner:
            call_next = _before(call_next, link)
        return self._first(request, call_next)


def _before(call_next: CallNext, link: Link) -> CallNext:
    return lambda request: link(request, call_next)
