"""Toolkits: what has tools and is none, such as those of LangChain, or an MCP server that is open."""

import inspect
from collections.abc import Iterable, Sequence, ValuesView
from types import FunctionType
from typing import Any, Protocol

from langchain_core.tools import BaseTool, StructuredTool, Tool

from callboard._types import has_members_of


class Toolkit(Protocol):
    """Something that is no tool itself and has tools, as LangChain's toolkits do."""

    def get_tools(self) -> Sequence[BaseTool]:
        """The tools that it has now."""
        ...


_PLAIN = (StructuredTool, Tool, FunctionType)
"""What most tools are; they are not asked for what toolkits have, which takes longer than all else here."""


def unpacked(given: Iterable[Any]) -> list[Any]:
    """What a node was given as tools, with those of each toolkit in its place.

    Raises:
        TypeError: if a toolkit has something else than a list of tools.
    """
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
