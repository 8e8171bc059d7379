"""Arguments and tool data of LangGraph's own `ToolNode`."""

from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import _default_handle_tool_errors, _get_all_injected_args


def arguments_of(node: ToolNode, default_errors: object) -> dict[str, Any]:
    """Return the constructor arguments of a LangGraph `ToolNode`; raise `TypeError` for a subclass with overrides.

    `default_errors` replaces LangGraph's default value of `handle_tool_errors`.
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
    """Return LangGraph's record of the injected arguments of each tool, for code that reads it from a node."""
    return {name: _get_all_injected_args(tool) for name, tool in tools.items()}
