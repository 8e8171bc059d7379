"""LangChain tools: the name of each function leads to a tool, not to the function."""

from langchain_core.tools import tool


@tool
def halve(number: int) -> float:
    """Half of it."""
    return number / 2


@tool
async def halve_later(number: int) -> float:
    """Half of it, in time."""
    return number / 2
