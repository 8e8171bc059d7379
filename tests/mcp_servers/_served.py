"""A server of our own with the SDK; `python -m tests.mcp_servers._served stdio|http [legacy]` runs it."""

import sys
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field


def server() -> "MCPServer[Any]":
    made: MCPServer[Any] = MCPServer("served")
    notes: list[str] = []

    @made.tool()
    def echo(text: Annotated[str, Field(description="What to say.")]) -> str:
        """Say what was said."""
        return text

    @made.tool()
    def remember(text: str) -> int:
        """Keep a note."""
        notes.append(text)
        return len(notes)

    @made.tool()
    async def count(to: int, ctx: Context) -> str:
        """Count, and say how far it is."""
        for number in range(to):
            await ctx.report_progress(number + 1, to, f"at {number + 1}")
        return f"counted to {to}"

    return made


async def _main(how: str) -> None:
    if how == "stdio":
        await server().run_stdio_async()


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1])
