"""The chain around a tool call: middleware from the outermost to the innermost, built once for a node."""

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from langchain_core.messages import RemoveMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from callboard._calls._call import SupervisedCall
from callboard._calls._crossing import SyncMiddleware, TwoHalves
from callboard._loops._door import is_missing
from callboard._suggestions import misspelt_in
from callboard.tools._call_output import Item, entries_in, is_output, items_in
from callboard.tools._errors import is_control_flow
from callboard.tools._langchain_middleware import (
    langchain_base,
    langchain_middleware,
    warn_of_ignored_hooks,
)
from callboard.tools._order import warn_of_wrong_order
from callboard.tools._results import REMOVE_ALL_MESSAGES

_log = logging.getLogger("callboard")

_WRAPPERS = ("wrap_tool_call", "awrap_tool_call")
Next = Callable[[Any], Awaitable[Any]]
Middleware = Callable[[Any, Next], Awaitable[Any]]
"""Takes the request and what comes next; may call that any number of times, also concurrently."""
Bounded = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
Rework = Callable[[ToolMessage, Any], Awaitable[ToolMessage]]
"""Takes a message that stands for an error, and the request."""


def middleware_in(option: str, middleware: object) -> tuple[object, ...]:
    """The middleware that an option was given.

    Raises:
        TypeError: if it is no list, or has a class in it where an instance is meant.
    """
    # Lists and tuples first, as nearly all are: the other questions take many steps.
    if not isinstance(middleware, (list, tuple)) and (
        isinstance(middleware, (str, bytes, Mapping)) or not isinstance(middleware, Iterable)
    ):
        raise TypeError(f"{option} takes a list of middleware, got {middleware!r}{_as_list(middleware)}")
    given = tuple(middleware)
    for one in given:
        if inspect.isclass(one):
            raise TypeError(f"{option} takes instances, and {one.__name__} is a class; write {one.__name__}(...)")
    return given


def _as_list(middleware: object) -> str:
    """How somebody may have meant what is no list of middleware."""
    if middleware is None:
        return "; leave it out for none"
    if not callable(middleware) and _method(middleware, "awrap_tool_call") is None:
        return ""
    return f"; write [{middleware_name(middleware)}{'' if inspect.isroutine(middleware) else '(...)'}]"


def wrapper_middleware(wrap: Callable[..., Any] | None, awrap: Callable[..., Any] | None) -> Middleware | None:
    """LangGraph's two wrappers as one middleware: of both, the one for the door that was entered; else what there is.

    Raises:
        TypeError: if one of them is no function, or the first one is async.
    """
    for name, value in zip(_WRAPPERS, (wrap, awrap), strict=True):
        if value is not None and not callable(value):
            raise TypeError(f"{name} takes a function of a request and what executes it, got {value!r}")
    if wrap is not None and _is_async(wrap):
        raise TypeError(f"wrap_tool_call takes a plain function; give {wrap!r} as awrap_tool_call=")
    either = _either(wrap, awrap)
    return None if either is None else _Answering(either)


class _Answering:
    """A wrapper whose author is told when it returns nothing; that goes on, as in LangGraph, like anything else."""

    __slots__ = ("_wrapper",)

    def __init__(self, wrapper: Middleware) -> None:
        self._wrapper = wrapper

    async def __call__(self, request: Any, call_next: Next) -> Any:
        output = await self._wrapper(request, call_next)
        if output is None:
            told = _no_result("wrapper", "wrap_tool_call or awrap_tool_call", output, request.tool_call["id"])
            _log.warning("%s", told)
        return output


def _no_result(kind: str, name: str, output: object, call_id: str | None) -> TypeError:
    return TypeError(
        f"The {kind} {name} returned {output!r} for call {call_id!r}; it has to return a ToolMessage, a Command or a "
        "list of them"
    )


def chain_of(middleware: Sequence[object], wrapper: Middleware | None) -> "Chain | None":
    """One middleware for all of them; `None` for none.

    Args:
        middleware: the first is the outermost.
        wrapper: inside all of them, and as lenient about its output as LangGraph is.

    Raises:
        TypeError: for an object that is no middleware.
        ValueError: for one that would do nothing as it is set.
    """
    if not middleware and wrapper is None:
        return None
    warn_of_wrong_order(middleware)
    chained: list[Middleware] = [Named(middleware_name(one), as_middleware(one)) for one in middleware]
    warn_of_ignored_hooks(middleware)
    if wrapper is not None:
        chained.append(wrapper)
    reworks = [
        (middleware_name(one), one.aerror_message)
        for one in cast("Sequence[Any]", middleware)
        if hasattr(one, "aerror_message")
    ]
    return Chain(chained, reworks)


def middleware_name(one: object) -> str:
    """What a middleware is called in errors."""
    name = getattr(one, "__qualname__", None)
    return name if isinstance(name, str) else type(one).__qualname__


def as_middleware(one: object) -> Middleware:
    """An async function of what may be a middleware: a function, sync or async, or an object with wrappers.

    Raises:
        TypeError: if it is none of these.
        ValueError: if it would do nothing as it is set.
    """
    if langchain_base(type(one)) is not None:
        return langchain_middleware(one)
    halves = _either(_method(one, "wrap_tool_call"), _method(one, "awrap_tool_call"))
    if halves is not None:
        return halves
    if not inspect.isclass(one) and callable(one):
        _check_takes_two(one)
        return cast("Middleware", one) if _is_async(one) else SyncMiddleware(cast("Callable[..., Any]", one))
    raise TypeError(
        "A middleware is a function (request, call_next), sync or async, or an object with awrap_tool_call or "
        f"wrap_tool_call; got {one!r}{misspelt_in(type(one), _WRAPPERS)}"
    )


def _either(wrap: Callable[..., Any] | None, awrap: Middleware | None) -> Middleware | None:
    if awrap is None:
        return None if wrap is None else SyncMiddleware(wrap)
    if wrap is None or is_missing(wrap):
        return awrap
    return TwoHalves(SyncMiddleware(wrap), awrap)


def _check_takes_two(fn: Callable[..., Any]) -> None:
    try:
        inspect.signature(fn).bind(None, None)
    except ValueError:  # it has no signature
        return
    except TypeError as error:
        raise TypeError(
            f"A middleware is a function (request, call_next), and {middleware_name(fn)} is not: {error}"
        ) from None


def _is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def _method(one: object, name: str) -> Callable[..., Any] | None:
    if getattr(type(one), name, None) is None:
        return None
    return cast("Callable[..., Any]", getattr(one, name))


class Named:
    """A middleware that is told, by name, when it returns what is no result."""

    __slots__ = ("_middleware", "_name")

    def __init__(self, name: str, middleware: Middleware) -> None:
        self._name = name
        self._middleware = middleware

    async def __call__(self, request: Any, call_next: Next) -> Any:
        output = await self._middleware(request, call_next)
        if type(output) is not ToolMessage or output.tool_call_id != request.tool_call["id"]:
            self._check(output, request.tool_call["id"])
        return output

    def _check(self, output: object, call_id: str | None) -> None:
        if not is_output(output):
            raise _no_result("middleware", self._name, output, call_id)
        if isinstance(output, ToolMessage) and output.tool_call_id != call_id:
            raise ValueError(
                f"The middleware {self._name} returned a message with tool_call_id {output.tool_call_id!r} for "
                f"call {call_id!r}; give it tool_call_id=request.tool_call['id']"
            )
        answers = [_answers_in(cast("Item", item), call_id) for item in items_in(output)]
        total = sum(answers)
        # A tool's own command may have more than one, as in LangGraph.
        if total < 1 or (total > 1 and isinstance(output, list)):
            raise ValueError(
                f"The middleware {self._name} returned {total or 'no'} messages for call {call_id!r} in {output!r}; a "
                "call has one, in a ToolMessage of its own or in the update of a Command"
            )


def _answers_in(item: Item, call_id: str | None) -> float:
    """How many messages for a call there are; `nan` where nobody can tell, or none is due."""
    if isinstance(item, Command) and (item.graph is not None or not isinstance(item.update, (dict, list))):
        return math.nan  # it leaves for another graph, or says nothing that is known here
    found = list(entries_in(item))
    if any(isinstance(one, RemoveMessage) and one.id == REMOVE_ALL_MESSAGES for one in found):
        return math.nan
    return sum(_answers(one, call_id) for one in found)


def _answers(one: object, call_id: str | None) -> bool:
    if isinstance(one, dict):  # a message, as LangChain takes it too
        return cast("dict[str, object]", one).get("tool_call_id") == call_id
    return isinstance(one, ToolMessage) and one.tool_call_id == call_id


def unbounded(run: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
    return run()


class Chain:
    """Middleware, each around the next. Control flow from inside goes through, whatever a middleware makes of it.

    Args:
        middleware: the first outermost.
        reworks: what middleware makes of a message that stands for an error which went through them, by name.
    """

    __slots__ = ("_middleware", "_reworks")

    def __init__(self, middleware: Sequence[Middleware], reworks: Sequence[tuple[str, Rework]]) -> None:
        self._middleware = middleware[::-1]
        self._reworks = reworks[::-1]

    async def rework(
        self, message: ToolMessage, request: Any, failed: Callable[[Exception], ToolMessage]
    ) -> ToolMessage:
        """A message that stands for an error, as the middleware would have left it.

        Args:
            message: from inside.
            request: of the call.
            failed: makes a message of the error of a middleware, which those around it see then.
        """
        for name, rework in self._reworks:
            try:
                message = _message_of(name, await rework(message, request), request.tool_call["id"])
            except Exception as error:
                if is_control_flow(error):
                    raise
                message = failed(error)
        return message

    async def __call__(self, request: Any, call_next: Next, bounded: Bounded = unbounded) -> Any:
        """Run the middleware around a call, the outermost first.

        Args:
            request: for the outermost middleware.
            call_next: what the innermost one is around.
            bounded: runs all of it, and may end it with an error of its own when it takes too long. What came from
                inside before goes through even so: a question that was asked is not lost to late middleware.
        """
        signals: list[Exception] = []
        step = _guarded(call_next, signals)
        for middleware in self._middleware[:-1]:
            step = _guarded(_around(middleware, step), signals)
        output: object = None
        try:
            output = await bounded(partial(self._middleware[-1], request, step))
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

    async def around_attempts(self, supervised: SupervisedCall[Any], request: Any, attempt: Next) -> Any:
        """Run the chain around the attempts at a supervised call, whose time is none of the middleware's.

        Args:
            supervised: the call; its timeout bounds the middleware too.
            request: for the outermost middleware.
            attempt: makes an attempt at a request, which middleware may have changed.
        """

        async def call_next(request: Any) -> Any:
            with supervised.outside_timeout():
                return await attempt(request)

        return await self(request, call_next, supervised.within_timeout)


def _message_of(name: str, message: object, call_id: str | None) -> ToolMessage:
    if not isinstance(message, ToolMessage) or message.tool_call_id != call_id:
        raise TypeError(
            f"aerror_message of the middleware {name} returned {message!r} for call {call_id!r}; it has to return the "
            "ToolMessage that it was given, or another one for the same call"
        )
    return message


def _around(middleware: Middleware, call_next: Next) -> Next:
    return lambda request: middleware(request, call_next)


def _guarded(call_next: Next, signals: list[Exception]) -> Next:
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
