"""Tools that tests serve by `callboard mcp`. The module prints when it is imported, as modules may."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import anyio
from langchain_core.messages import AIMessage
from langgraph.types import interrupt

from callboard import ToolNode, create_react_agent, progress
from callboard.middleware import RequireApproval
from callboard.testing import ScriptedModel, calls

print("loaded")


async def add(one: int, other: int) -> dict[str, int]:
    """Add two numbers."""
    print("printed")
    sys.__stdout__.write("written\n")  # type: ignore[union-attr]
    os.write(1, b"by its number\n")
    subprocess.run(["echo", "by a child"], check=True)
    return {"sum": one + other, "read": len(sys.stdin.read())}


async def stay(seconds: float, folder: str) -> str:
    """Stay for a while, and leave a note of how it ended."""
    progress("came")
    Path(folder, "began").touch()
    try:
        await anyio.sleep(seconds)
    finally:
        Path(folder, "ended").touch()
    return "left"


async def plan(town: str) -> str:
    """Plan a journey."""
    return f"{town}: {interrupt(f'When to {town}?')}"


async def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} deleted"


async def count_frozen() -> str:
    """Count the objects that garbage collections leave out."""
    return str(gc.get_freeze_count())


tools = [add, stay, plan]
frozen = [count_frozen]
node = ToolNode([*tools, delete], middleware=[RequireApproval(["delete"])])
agent = create_react_agent(ScriptedModel([calls(("add", {"one": 1, "other": 2})), AIMessage("It is 3.")]), [add])
nothing = 3
