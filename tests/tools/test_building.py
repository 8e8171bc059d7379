"""Cost of building a node: web servers build one for each request."""

import sys
from collections.abc import Callable
from types import FrameType

import langgraph.prebuilt
from langchain_core.tools import BaseTool, tool

from callboard import ToolNode


@tool
async def look_up(query: str) -> str:
    """Look something up."""
    return query


def python_calls(build: Callable[[list[BaseTool]], object]) -> int:
    """Return how many Python functions run while a node of one tool is built, after one build as warm-up."""
    build([look_up])
    count = 0

    def called(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        build([look_up])
    finally:
        sys.setprofile(before)
    return count


def test_building_a_node_takes_no_more_steps_than_langgraphs() -> None:
    """Signatures are inspected and threads prepared by the first call. Only mistakes are checked while building."""
    assert python_calls(ToolNode) <= python_calls(langgraph.prebuilt.ToolNode)
