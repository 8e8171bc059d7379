"""Middleware chain around a tool call, from the outermost to the innermost, built once for a node."""

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from langchain_core.messages import RemoveMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from callboard._calls._sync_middleware import SyncMiddleware, TwoHalves
from callboard._langchain._errors import is_control_flow
from callboard._langchain._outputs import Item, entries_in, is_output, items_in
from callboard._loops._entry_mode import is_missing
from callboard._util._callers import is_async
from callboard._util._suggestions import misspelt_in
from callboard.tools._middleware import HOOKS, Middleware, hook, middleware_name, warn_of_wrong_order
from callboard.tools._middleware_hooks import langchain_base, langchain_middleware, warn_of_ignored_hooks
from callboard.tools._results import REMOVE_ALL_MESSAGES

_log = logging.getLogger("callboard")

_WRAPPERS = ("wrap_tool_call", "awrap_tool_call")
Next = Callable[[Any], Awaitable[Any]]
Wrapper = Callable[[Any, Next], Awaitable[Any]]
"""Async function `(request, call_next)`. It may call `call_next` any number of times, also concurrently."""
RunInTime = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
Rework = Callable[[ToolMessage, Any], Awaitable[ToolMessage]]
"""Async function that takes an error message and its request, and returns the message to use instead."""


def middleware_in(option: str, middleware: object) -> tuple[object, ...]:
    """Return the value of an option that takes a list of middleware, as a tuple; raise TypeError for other values."""
    # Lists and tuples first, as nearly all options are: `isinstance` with an abstract class takes much longer.
    if not isinstance(middleware, (list, tuple)) and (
        isinstance(middleware, (str, bytes, Mapping)) or not isinstance(middleware, Iterable)
    ):
        hint = ""
        if middleware is None:
            hint = "; leave it out for none"
        elif callable(middleware) or _method(middleware, "awrap_tool_call") is not None:
            hint = f"; write [{middleware_name(middleware)}{'' if inspect.isroutine(middleware) else '(...)'}]"
        raise TypeError(f"{option} takes a list of middleware, got {middleware!r}{hint}")
    items = tuple(middleware)
    for item in items:
        if inspect.isclass(item):
            raise TypeError(f"{option} takes instances, and {item.__name__} is a class; write {item.__name__}(...)")
    return items


def wrapper_middleware(wrap: Callable[..., Any] | None, awrap: Callable[..., Any] | None) -> Wrapper | None:
    """Return `wrap_tool_call` (for sync runs) and `awrap_tool_call` as one middleware; `None` if both are `None`."""
    for name, value in zip(_WRAPPERS, (wrap, awrap), strict=True):
        if value is not None and not callable(value):
            raise TypeError(f"{name} takes a function of a request and what executes it, got {value!r}")
    if wrap is not None and is_async(wrap):
        raise TypeError(f"wrap_tool_call takes a plain function; give {wrap!r} as awrap_tool_call=")
    return _join_sync_and_async(wrap, awrap)


def _missing_result_error(kind: str, name: str, output: object, call_id: str | None) -> TypeError:
    return TypeError(
        f"The {kind} {name} returned {output!r} for call {call_id!r}; it has to return a ToolMessage, a Command or a "
        "list of them"
    )


def chain_of(middleware: Sequence[object], wrapper: Wrapper | None) -> "Chain | None":
    """Return the chain of all middleware, with LangGraph's wrapper function innermost; `None` for an empty chain."""
    if not middleware and wrapper is None:
        return None
    warn_of_wrong_order(middleware)
    links = [link_of(middleware_name(item), as_middleware(item)) for item in middleware]
    warn_of_ignored_hooks(middleware)
    if wrapper is not None:
        links.append(Link(wrapper, _warn_of_missing_output))
    reworks = [(middleware_name(item), rework) for item in middleware if (rework := hook(item, "aerror_message"))]
    return Chain(links, reworks)


def as_middleware(middleware: object) -> Wrapper:
    """Return a middleware (a function, or an object with methods) as an async function `(request, call_next)`."""
    if langchain_base(type(middleware)) is not None:
        return langchain_middleware(middleware)
    halves = _join_sync_and_async(_method(middleware, "wrap_tool_call"), _method(middleware, "awrap_tool_call"))
    if halves is not None:
        return halves
    if isinstance(middleware, Middleware):
        name, hint = type(middleware).__name__, misspelt_in(type(middleware), _WRAPPERS)
        if not (middleware.tools or any(hook(middleware, hook_name) for hook_name in HOOKS)):
            hint = misspelt_in(type(middleware), (*dir(Middleware), *_WRAPPERS))
            remedy = hint or "; override awrap_tool_call, for example"
            raise TypeError(f"The middleware {name} overrides no method of Middleware{remedy}")
        if hint:
            raise TypeError(f"The middleware {name} has no wrapper of calls{hint}")
        return middleware.awrap_tool_call
    if not inspect.isclass(middleware) and callable(middleware):
        try:
            inspect.signature(middleware).bind(None, None)
        except TypeError as error:
            raise TypeError(
                f"A middleware is a function (request, call_next), and {middleware_name(middleware)} is not: {error}"
            ) from None
        except ValueError:  # a builtin without a signature
            pass
        return cast("Wrapper", middleware) if is_async(middleware) else SyncMiddleware(middleware)
    raise TypeError(
        "A middleware is a function (request, call_next), sync or async, or an object with awrap_tool_call or "
        f"wrap_tool_call; got {middleware!r}{misspelt_in(type(middleware), _WRAPPERS)}"
    )


def _join_sync_and_async(wrap: Callable[..., Any] | None, awrap: Wrapper | None) -> Wrapper | None:
    if awrap is None:
        return None if wrap is None else SyncMiddleware(wrap)
    if wrap is None or is_missing(wrap):
        return awrap
    return TwoHalves(SyncMiddleware(wrap), awrap)


def _method(middleware: object, name: str) -> Callable[..., Any] | None:
    return None if getattr(type(middleware), name, None) is None else hook(middleware, name)


class Link(NamedTuple):
    """One middleware of a chain, and an optional function that checks the middleware's output."""

    middleware: Wrapper
    check: Callable[[object, str | None], None] | None = None
    """Function of an output and the id of its call; it raises an error for an invalid output."""


def link_of(name: str, middleware: Wrapper) -> Link:
    """Return a link of a chain: a middleware, and a check of its output; the check's error names the middleware."""
    return Link(middleware, partial(_check_output, name))


def _check_output(name: str, output: object, call_id: str | None) -> None:
    if type(output) is ToolMessage and output.tool_call_id == call_id:
        return
    if inspect.iscoroutine(output):
        output.close()  # without the warning of Python, which names a coroutine of the chain
        raise TypeError(
            f"The middleware {name} returned a coroutine for call {call_id!r}: it has to await what it calls, such as "
            "`return await call_next(request)`"
        )
    if not is_output(output):
        raise _missing_result_error("middleware", name, output, call_id)
    if isinstance(output, ToolMessage) and output.tool_call_id != call_id:
        raise ValueError(
            f"The middleware {name} returned a message with tool_call_id {output.tool_call_id!r} for "
            f"call {call_id!r}; give it tool_call_id=request.tool_call['id']"
        )
    answers = [_count_answers(cast("Item", item), call_id) for item in items_in(output)]
    total = sum(answers)
    # A command that the tool itself returned may contain several answers, as in LangGraph.
    if total < 1 or (total > 1 and isinstance(output, list)):
        raise ValueError(
            f"The middleware {name} returned {total or 'no'} messages for call {call_id!r} in {output!r}; a "
            "call has one, in a ToolMessage of its own or in the update of a Command"
        )


def _warn_of_missing_output(output: object, call_id: str | None) -> None:
    """Log a warning if a wrapper in LangGraph's style returned `None`: LangGraph does not reject this output."""
    if output is None:
        error = _missing_result_error("wrapper", "wrap_tool_call or awrap_tool_call", output, call_id)
        _log.warning("%s", error)


def _count_answers(item: Item, call_id: str | None) -> float:
    """Return the number of messages in an output that answer a call; `nan` if it is unknown or not to be checked."""
    if isinstance(item, Command) and (item.graph is not None or not isinstance(item.update, (dict, list))):
        return math.nan  # it leaves for another graph, or its update has an unknown form
    answers = 0
    for entry in entries_in(item):
        if isinstance(entry, RemoveMessage) and entry.id == REMOVE_ALL_MESSAGES:
            return math.nan
        if isinstance(entry, dict):  # LangChain also accepts messages as dicts
            answers += entry.get("tool_call_id") == call_id
        elif isinstance(entry, ToolMessage):
            answers += entry.tool_call_id == call_id
    return answers


class Chain:
    """Chain of middleware, which wraps tool calls and can also change their error messages.

    Interrupts and parent commands from inside always leave the chain, even if a middleware catches them.
    """

    __slots__ = ("_links", "_message_reworks")

    def __init__(self, links: Sequence[Link], reworks: Sequence[tuple[str, Rework]] = ()) -> None:
        self._links = links
        self._message_reworks = reworks[::-1]

    async def rework_error_message(
        self, message: ToolMessage, request: Any, on_failure: Callable[[Exception], ToolMessage]
    ) -> ToolMessage:
        """Return a message after all `aerror_message` methods changed it; `on_failure` makes messages of errors."""
        for name, rework in self._message_reworks:
            try:
                new_message: object = await rework(message, request)
                call_id = request.tool_call["id"]
                if not isinstance(new_message, ToolMessage) or new_message.tool_call_id != call_id:
                    raise TypeError(
                        f"aerror_message of the middleware {name} returned {new_message!r} for call {call_id!r}; it "
                        "has to return the ToolMessage that it was given, or another one for the same call"
                    )
                message = new_message
            except Exception as error:
                if is_control_flow(error):
                    raise
                message = on_failure(error)
        return message

    async def __call__(self, request: Any, call_next: Next, run_in_time: RunInTime | None = None) -> Any:
        """Run a call through all middleware and then `call_next`; `run_in_time` limits the time of the middleware."""
        signals: list[Exception] = []
        run = partial(self._run_link, signals, call_next, 0, request)
        output: object = None
        try:
            output = await (run() if run_in_time is None else run_in_time(run))
        except Exception:
            # A middleware may catch control flow, retry after it or raise an error of its own: the recorded signal
            # wins.
            if not signals:
                raise
        if signals:
            signal = signals[0]
            # Later calls of `call_next` raise this one: the signal's own traceback leads to this frame, a cycle.
            signals[:] = [GraphBubbleUp()]
            try:
                raise signal
            finally:
                del signal
        return output

    async def _run_link(self, signals: list[Exception], call_next: Next, index: int, request: Any) -> Any:
        """Run the chain from the middleware at `index` inwards; after the last middleware, run `call_next`."""
        # After an interrupt no body may start: its effect would come before the person's answer.
        if signals:
            raise signals[0]
        try:
            if index == len(self._links):
                return await call_next(request)
            middleware, check = self._links[index]
            output = await middleware(request, partial(self._run_link, signals, call_next, index + 1))
            if check is not None:
                check(output, request.tool_call["id"])
            return output
        except Exception as error:
            if is_control_flow(error):
                signals.append(error)
            raise
