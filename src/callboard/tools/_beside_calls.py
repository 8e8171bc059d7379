"""What middleware has besides what is around a call: tools of its own, and something to say of those of others."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from langchain_core.tools import BaseTool

from callboard._call_events import RunInfo
from callboard._types import CallPolicy, ToolCallLike
from callboard.tools._langchain_middleware import asked_about
from callboard.tools._tool_names import check_tool_names

_log = logging.getLogger("callboard")


def tools_of(middleware: Sequence[object]) -> list[Any]:
    """The tools that middleware brings along, as LangChain's middleware does."""
    return [tool for one in middleware for tool in getattr(one, "tools", None) or ()]


def check_tools(middleware: Iterable[object], tools: Mapping[str, BaseTool]) -> None:
    """Let middleware look for the tools that it was told of by name.

    Args:
        middleware: also methods of it, as LangGraph's wrappers may be.
        tools: those that there are.

    Raises:
        ValueError: by the middleware that misses one.
    """
    for given in middleware:
        one: Any = getattr(given, "__self__", given)
        if callable(getattr(one, "check_tools", None)):
            one.check_tools(tools)
        elif names := asked_about(one):
            check_tool_names(f"{type(one).__name__}(interrupt_on=...)", names, tools)


def check_policies(middleware: Iterable[object], policies: Mapping[str, CallPolicy]) -> None:
    """Let middleware look at the policies of the tools that there are, by name."""
    for one in cast("Iterable[Any]", middleware):
        if callable(getattr(one, "check_policies", None)):
            one.check_policies(policies)


def offers_of(middleware: Sequence[object]) -> Callable[[Any], bool]:
    """What says whether a model should be told of a tool now: the outermost middleware that has an opinion."""
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
    """What makes of a call what observers may see: its arguments, as the middleware redacts them.

    Middleware redacts by a method `redact_value(value, *, thread_id)`, as `Redact` does; if one fails, nothing of
    the arguments is shown, which is logged once.
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
            args = {}
            if not reported:
                reported = True  # without the text of the error, which may quote what was to be redacted
                kind = type(error).__qualname__
                _log.error("redact_value failed with %s; observers see no arguments; this is reported once", kind)
        return {**call, "args": args}

    return shown
