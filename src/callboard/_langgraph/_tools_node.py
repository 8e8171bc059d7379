"""LangGraph's own tools node, read: what it was built with, and what it knows of its tools."""

from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import _default_handle_tool_errors, _get_all_injected_args


def arguments_of(node: ToolNode, default_errors: object) -> dict[str, Any]:
    """The arguments that LangGraph's node was built with.

    Args:
        node: the node.
        default_errors: stands for LangGraph's default of `handle_tool_errors`.

    Raises:
        TypeError: if it is of a subclass, whose methods nobody but LangGraph would call.
    """
    kind = type(node)
    known = set(dir(ToolNode))
    own = [name for name in known if not name.startswith("__") and getattr(kind, name) is not getattr(ToolNode, name)]
    if own := sorted(name for name in own if not name.startswith("_abc")):
        raise TypeError(
            f"{kind.__qualname__} overrides {', '.join(own)} of LangGraph's ToolNode, which callboard would not call; "
            "derive it from callboard.ToolNode"
        )
    errors = node._handle_tool_errors
    return {
        "tools": list(node.tools_by_name.values()),
        "name": node.name,
        "tags": node.tags,
        "handle_tool_errors": default_errors if errors is _default_handle_tool_errors else errors,
        "messages_key": node._messages_key,
        "wrap_tool_call": node._wrap_tool_call,
        "awrap_tool_call": node._awrap_tool_call,
    }


def injected_args_by_name(tools: Mapping[str, BaseTool]) -> dict[str, Any]:
    """What LangGraph's own node knows of its tools' injected arguments, for code that reads it there."""
    return {name: _get_all_injected_args(tool) for name, tool in tools.items()}
