"""Tools of LangChain's, whose functions are not what their names lead to."""

from langchain_core.tools import tool


@tool
def halve(number: int) -> float:
    """Half of it."""
    return number / 2


@tool
async def halve_later(number: int) -> float:
    """Half of it, in time."""
    return number / 2
