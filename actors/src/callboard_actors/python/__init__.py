"""Tool by which a model runs Python code: `python_tool`.

    node = ToolNode([python_tool(Python(packages=["numpy"]))])

Each conversation has an interpreter of its own, in a confined worker process, which keeps its names between calls.
"""

from typing import TYPE_CHECKING

from callboard_actors._util._on_demand import on_demand

if TYPE_CHECKING:
    from callboard_actors.python._python import Python as Python
    from callboard_actors.python._tool import python_tool as python_tool

__all__ = ["Python", "python_tool"]

__getattr__ = on_demand(
    __name__, {"Python": "callboard_actors.python._python", "python_tool": "callboard_actors.python._tool"}
)
