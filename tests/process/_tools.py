"""LangChain tools that run in workers."""

from typing import Annotated, Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command

from callboard import InjectedState


@tool
def number_of_messages(state: Annotated[dict[str, Any], InjectedState]) -> int:
    """How long the conversation is."""
    return len(state["messages"])


@tool
def leave(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Change the state."""
    return Command(update={"messages": [ToolMessage("left", tool_call_id=call_id)]})


@tool(response_format="content_and_artifact")
def draw(size: int) -> tuple[str, bytes]:
    """Draw something."""
    return f"{size} pixels", b"x" * size
