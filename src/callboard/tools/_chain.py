"""The chain around a tool call: links from the outermost to the innermost, built once for a node."""

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import RemoveMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from callboard._loops._door import is_missing
from callboard._types import CallPolicy, RunInfo, ToolCallLike
from callboard.tools._crossing import SyncLink, TwoHalves
from callboard.tools._errors import is_control_flow
from callboard.tools._langchain_middleware import asked_about, langchain_base, langchain_link, warn_of_ignored_hooks
from callboard.tools._order import warn_of_wrong_order
from callboard.tools._results import REMOVE_ALL_MESSAGES
from callboard.tools._tool_names import check_tool_names

CallNext = Callable[[Any], Awaitable[Any]]
Link = Callable[[Any, CallNext], Awaitable[Any]]
"""Takes the request and what comes next; may call that any number of times, also concurrently."""
Rework = Callable[[ToolMessage, Any], Awaitable[ToolMessage]]
"""Takes a message that stands for an error, and the request."""


def links_in(option: str, middleware: object) -> tuple[object, ...]:
    """The links that an option was given.

    Raises:
        TypeError: if it is no list, or has a class in it where a link is meant.
    """
    # Lists and tuples first, as nearly all are: the other questions take many steps.
    if not isinstance(middleware, (list, tuple)) and (
        isinstance(middleware, (str, bytes, Mapping)) or not isinstance(middleware, Iterable)
    ):
        raise TypeError(f"{option} takes a list of links, got {middleware!r}{_as_list(middleware)}")
    links = tuple(middleware)
    for one in links:
        if inspect.isclass(one):
            raise TypeError(f"{option} takes links, and {one.__name__} is a class; write {one.__name__}(...)")
    return links


def _as_list(middleware: object) -> str:
    """How somebody may have meant what is no list of links."""
    if middleware is None:
        return "; leave it out for none"
    if not callable(middleware) and _method(middleware, "awrap_tool_call") is None:
        return ""
    return f"; write [{link_name(middleware)}{'' if inspect.isroutine(middleware) else '(...)'}]"


def wrapper_link(wrap: Callable[..., Any] | None, awrap: Callable[..., Any] | None) -> Link | None:
    """The one link for LangGraph's two wrappers: of both, the one for the door that was entered; else what there is.

    Raises:
        TypeError: if one of them is no function.
    """
    for name, value in (("wrap_tool_call", wrap), ("awrap_tool_call", awrap)):
        if value is not None and not callable(value):
            raise TypeError(f"{name} takes a function of a request and what executes it, got {value!r}")
    return _either(wrap, awrap)


def chain_of(middleware: Sequence[object], wrapper: Link | None) -> "Chain | None":
    """One link for all of them; `None` for none.

    Args:
        middleware: links, the first outermost.
        wrapper: inside all of them, and as lenient about its output as LangGraph is.

    Raises:
        TypeError: for an object that is no link.
        ValueError: for one that would do nothing as it is set.
    """
    warn_of_wrong_order(middleware)
    links: list[Link] = [Named(link_name(one), as_link(one)) for one in middleware]
    warn_of_ignored_hooks(middleware)
    if wrapper is not None:
        links.append(wrapper)
    reworks = [
        (link_name(link), link.aerror_message)
        for link in cast("Sequence[Any]", middleware)
        if hasattr(link, "aerror_message")
    ]
    return Chain(links, reworks) if links else None


def tools_of(middleware: Sequence[object]) -> list[Any]:
    """The tools that links bring along, as LangChain's middleware does."""
    return [tool for link in middleware for tool in getattr(link, "tools", None) or ()]


def check_tools(links: Iterable[object], tools: Mapping[str, BaseTool]) -> None:
    """Let links look for the tools that they were told of by name.

    Args:
        links: also methods of links, as LangGraph's wrappers may be.
        tools: those that there are.

    Raises:
        ValueError: by a link that misses one.
    """
    for one in links:
        link: Any = getattr(one, "__self__", one)
        if callable(getattr(link, "check_tools", None)):
            link.check_tools(tools)
        elif names := asked_about(link):
            check_tool_names(f"{type(link).__name__}(interrupt_on=...)", names, tools)


def check_policies(links: Iterable[object], policies: Mapping[str, CallPolicy]) -> None:
    """Let links look at the policies of the tools that there are, by name."""
    for link in cast("Iterable[Any]", links):
        if callable(getattr(link, "check_policies", None)):
            link.check_policies(policies)


def offers_of(middleware: Sequence[object]) -> Callable[[Any], bool]:
    """What says whether a model should be told of a tool now: the outermost link that has an opinion."""
    links = [link for link in cast("Sequence[Any]", middleware) if hasattr(link, "offers") or hasattr(link, "covers")]

    def offers(tool: Any) -> bool:
        for link in links:
            if hasattr(link, "covers") and link.covers(tool):
                return True
            if hasattr(link, "offers") and not link.offers(tool):
                return False
        return True

    return offers


def shown_by(middleware: Sequence[object]) -> Callable[[ToolCallLike, RunInfo | None], ToolCallLike]:
    """What makes of a call what those who watch may see: its arguments, as the links redact them.

    A link redacts by a method `redact_value(value, *, thread_id)`, as `Redact` does; if one fails, nothing of
    the arguments is shown.
    """
    links = [link for link in cast("Sequence[Any]", middleware) if callable(getattr(link, "redact_value", None))]

    def shown(call: ToolCallLike, run: RunInfo | None) -> ToolCallLike:
        if not links:
            return call
        thread_id = (run and run.thread_id) or ""
        args = call["args"]
        try:
            for link in links:
                args = link.redact_value(args, thread_id=thread_id)
        except Exception:
            args = {}
        return {**call, "args": args}

    return shown


def link_name(one: object) -> str:
    """What a link is called in errors."""
    name = getattr(one, "__qualname__", None)
    return name if isinstance(name, str) else type(one).__qualname__


def as_link(one: object) -> Link:
    """An async function of what may be a link: a function, sync or async, or an object with wrappers.

    Raises:
        TypeError: if it is none of these.
        ValueError: if it would do nothing as it is set.
    """
    if langchain_base(type(one)) is not None:
        return langchain_link(one)
    link = _either(_method(one, "wrap_tool_call"), _method(one, "awrap_tool_call"))
    if link is not None:
        return link
    if not inspect.isclass(one) and callable(one):
        _check_takes_two(one)
        return cast("Link", one) if _is_async(one) else SyncLink(cast("Callable[..., Any]", one))
    raise TypeError(
        "A link is a function (request, call_next), sync or async, or an object with awrap_tool_call or "
        f"wrap_tool_call; got {one!r}"
    )


def _either(wrap: Callable[..., Any] | None, awrap: Link | None) -> Link | None:
    if awrap is None:
        return None if wrap is None else SyncLink(wrap)
    if wrap is None or is_missing(wrap):
        return awrap
    return TwoHalves(SyncLink(wrap), awrap)


def _check_takes_two(fn: Callable[..., Any]) -> None:
    try:
        inspect.signature(fn).bind(None, None)
    except ValueError:  # it has no signature
        return
    except TypeError as error:
        raise TypeError(f"A link is a function (request, call_next), and {link_name(fn)} is not: {error}") from None


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def _method(one: object, name: str) -> Callable[..., Any] | None:
    if getattr(type(one), name, None) is None:
        return None
    return cast("Callable[..., Any]", getattr(one, name))


class Named:
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
        answers = [_answers_in(cast("ToolMessage | Command[Any]", item), call_id) for item in items]
        total = sum(answers)
        # A tool's own command may have more than one, as in LangGraph.
        if total < 1 or (total > 1 and isinstance(output, list)):
            raise ValueError(
                f"The link {self._name} returned {total or 'no'} messages for call {call_id!r} in {output!r}; a call "
                "has one, in a ToolMessage of its own or in the update of a Command"
            )


def _answers_in(item: ToolMessage | Command[Any], call_id: str | None) -> float:
    """How many messages for a call there are; `nan` where nobody can tell, or none is due."""
    if isinstance(item, ToolMessage):
        return int(item.tool_call_id == call_id)
    update: object = item.update
    if item.graph is not None or not isinstance(update, (dict, list)):
        return math.nan  # it leaves for another graph, or says nothing that is known here
    pairs = list(update.items()) if isinstance(update, dict) else [one for one in update if isinstance(one, tuple)]
    values: list[object] = [value for _, value in cast("list[tuple[object, object]]", pairs)]
    if isinstance(update, list):
        values.append(update)
    found = [one for value in values for one in (value if isinstance(value, list) else [value])]
    if any(isinstance(one, RemoveMessage) and one.id == REMOVE_ALL_MESSAGES for one in found):
        return math.nan
    return sum(_answers(one, call_id) for one in found)


def _answers(one: object, call_id: str | None) -> bool:
    if isinstance(one, dict):  # a message, as LangChain takes it too
        return cast("dict[str, object]", one).get("tool_call_id") == call_id
    return isinstance(one, ToolMessage) and one.tool_call_id == call_id


class Chain:
    """Links, each around the next. Control flow from inside goes through, whatever a link makes of it.

    Args:
        links: the first outermost.
        reworks: what links make of a message that stands for an error which went through them, by name.
    """

    __slots__ = ("_links", "_reworks")

    def __init__(self, links: Sequence[Link], reworks: Sequence[tuple[str, Rework]]) -> None:
        self._links = links[::-1]
        self._reworks = reworks[::-1]

    async def rework(
        self, message: ToolMessage, request: Any, failed: Callable[[Exception], ToolMessage]
    ) -> ToolMessage:
        """A message that stands for an error, as the links would have left it.

        Args:
            message: from inside.
            request: of the call.
            failed: makes a message of the error of a link, which the links around that one see then.
        """
        for name, rework in self._reworks:
            try:
                message = _message_of(name, await rework(message, request), request.tool_call["id"])
            except Exception as error:
                if is_control_flow(error):
                    raise
                message = failed(error)
        return message

    async def __call__(self, request: Any, call_next: CallNext) -> Any:
        signals: list[Exception] = []
        step = _guarded(call_next, signals)
        for link in self._links[:-1]:
            step = _guarded(_around(link, step), signals)
        output: object = None
        try:
            output = await self._links[-1](request, step)
        except Exception:
            if not signals:
                raise
        if signals:
            signal = signals[0]
            signals[:] = [GraphBubbleUp()]  # for whoever still calls; the signal's own traceback leads back here
            try:
                raise signal
            finally:
                del signal
        return output


def _message_of(name: str, message: object, call_id: str | None) -> ToolMessage:
    if not isinstance(message, ToolMessage) or message.tool_call_id != call_id:
        raise TypeError(
            f"aerror_message of the link {name} returned {message!r} for call {call_id!r}; it has to return the "
            "ToolMessage that it was given, or another one for the same call"
        )
    return message


def _around(link: Link, call_next: CallNext) -> CallNext:
    return lambda request: link(request, call_next)


def _guarded(call_next: CallNext, signals: list[Exception]) -> CallNext:
    """Remember the control flow that comes from inside, and start nothing once there is some."""

    async def step(request: Any) -> Any:
        if signals:
            raise signals[0]
        try:
            return await call_next(request)
        except Exception as error:
            if is_control_flow(error):
                signals.append(error)
            raise

    return step
