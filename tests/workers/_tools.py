"""Tools and an actor that run in workers."""

import os
from typing import Annotated, Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command

from callboard import Actor, InjectedState, handler

from . import _bodies as bodies


@tool
def hang(how: str, folder: str) -> str:
    """Hang in one of many ways."""
    getattr(bodies, how)(folder)
    return "never"


@tool
def end(code: int) -> str:
    """End the process."""
    print("about to end")
    os._exit(code)


@tool
async def later(text: str) -> str:
    """Say a text, and where."""
    return f"{text} from {os.getpid()}"


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


class Desk(Actor):
    """A desk with papers on it."""

    def __init__(self, room: str) -> None:
        self.room = room
        self.papers: list[str] = []

    async def start(self) -> None:
        self.papers.append(f"in {self.room}")

    @handler
    async def put(self, paper: str) -> str:
        """Put a paper on the desk."""
        self.papers.append(paper)
        return ", ".join(self.papers)

    @handler
    def where(self) -> int:
        """In which process the desk is."""
        return os.getpid()

    @handler
    def hang(self, folder: str) -> None:
        """Hang in C."""
        bodies.sleep_in_c(folder)

    async def snapshot(self) -> list[str]:
        return self.papers

    async def restore(self, snapshot: list[str]) -> None:
        self.papers = snapshot
