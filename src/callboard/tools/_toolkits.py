"""Toolkits: objects that contain tools, such as LangChain's toolkits or an open MCP server."""

import inspect
from collections.abc import Iterable, Sequence, ValuesView
from types import FunctionType
from typing import Any, Protocol

from langchain_core.tools import BaseTool, StructuredTool, Tool

from callboard._records._policies import has_members_of


class Toolkit(Protocol):
    """Object that is no tool itself and contains tools."""

    def get_tools(self) -> Sequence[BaseTool]:
        """Return the present tools."""
        ...


_PLAIN = (StructuredTool, Tool, FunctionType)
"""Usual types of tools. They are not tested for being a toolkit, which takes longer than everything else here."""


def unpacked(given: Iterable[Any]) -> list[Any]:
    """Return the tools given to a node, with each toolkit replaced by its tools."""
    found: list[Any] = []
    for one in given:
        if one.__class__ not in _PLAIN and not isinstance(one, BaseTool) and has_members_of(Toolkit, one):
            found += _tools_of(one)
        else:
            found.append(one)
    return found


def _tools_of(toolkit: Toolkit) -> Iterable[BaseTool]:
    tools: object = toolkit.get_tools()
    if isinstance(tools, (Sequence, ValuesView)) and not isinstance(tools, str):
        return tools
    if inspect.iscoroutine(tools):
        tools.close()
    raise TypeError(f"get_tools() of a toolkit returns a list of tools; that of {toolkit!r} returned {tools!r}")
