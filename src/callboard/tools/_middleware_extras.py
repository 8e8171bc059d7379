"""Optional methods of middleware besides the wrapper: own tools, checks, offers, and redaction for observers."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from langchain_core.tools import BaseTool

from callboard._records._events import RunInfo
from callboard._records._policies import CallPolicy, ToolCallLike
from callboard.tools._langchain_hooks import asked_about
from callboard.tools._tool_names import check_tool_names

_log = logging.getLogger("callboard")


def tools_of(middleware: Sequence[object]) -> list[Any]:
    """Return the tools that middleware brings along in its attribute `tools`, as LangChain's middleware does."""
    return [tool for one in middleware for tool in getattr(one, "tools", None) or ()]


def check_tools(middleware: Iterable[object], tools: Mapping[str, BaseTool]) -> None:
    """Let middleware check the tool names in its options; it raises ValueError for an unknown one.

    LangGraph's wrappers may be bound methods of middleware, so they are passed too.
    """
    for given in middleware:
        one: Any = getattr(given, "__self__", given)
        if callable(getattr(one, "check_tools", None)):
            one.check_tools(tools)
        elif names := asked_about(one):
            check_tool_names(f"{type(one).__name__}(interrupt_on=...)", names, tools)


def check_policies(middleware: Iterable[object], policies: Mapping[str, CallPolicy]) -> None:
    """Let middleware check the policies of the node's tools, by name."""
    for one in cast("Iterable[Any]", middleware):
        if callable(getattr(one, "check_policies", None)):
            one.check_policies(policies)


def offers_of(middleware: Sequence[object]) -> Callable[[Any], bool]:
    """Return a function that tells whether the model may be offered a tool now: the outermost middleware decides."""
    asked = [one for one in cast("Sequence[Any]", middleware) if hasattr(one, "offers") or hasattr(one, "covers")]

    def offers(tool: Any) -> bool:
        for one in asked:
            if hasattr(one, "covers") and one.covers(tool):
                return True
            if hasattr(one, "offers") and not one.offers(tool):
                return False
        return True

    return offers


def shown_by(middleware: Sequence[object]) -> Callable[[ToolCallLike, RunInfo | None], ToolCallLike]:
    """Return a function that makes the call for observers: its arguments, redacted by the middleware.

    A middleware redacts with a method `redact_value(value, *, thread_id)`, as `Redact` does. If the method fails,
    observers see no arguments; the failure is logged once.
    """
    reported = False
    redacting = [one for one in cast("Sequence[Any]", middleware) if callable(getattr(one, "redact_value", None))]

    def shown(call: ToolCallLike, run: RunInfo | None) -> ToolCallLike:
        nonlocal reported
        if not redacting:
            return call
        thread_id = (run and run.thread_id) or ""
        args = call["args"]
        try:
            for one in redacting:
                args = one.redact_value(args, thread_id=thread_id)
        except Exception as error:
            # Fail closed: arguments that could not be redacted must not reach spans or logs.
            args = {}
            if not reported:
                reported = True  # without the text of the error, which may quote what was to be redacted
                kind = type(error).__qualname__
                _log.error("redact_value failed with %s; observers see no arguments; this is reported once", kind)
        return {**call, "args": args}

    return shown
