"""SDK server that speaks version 2026 and earlier ones.

`python -m tests.mcp._served stdio` serves on stdin and stdout; with `http` it serves on loopback and prints the
port.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import Field

Ctx = Context[Any, Any]


def server() -> MCPServer[Any]:
    """Return a new server with notes of its own."""
    mcp_server: MCPServer[Any] = MCPServer("served")
    notes: list[str] = []

    @mcp_server.tool()
    async def echo(text: Annotated[str, Field(description="What to say.")]) -> str:
        """Say what was said."""
        return text

    @mcp_server.tool()
    async def remember(text: str) -> int:
        """Keep a note, and say how many there are."""
        notes.append(text)
        return len(notes)

    _add_tools_with_context(mcp_server)
    _add_tools_that_wait(mcp_server)
    return mcp_server


def _add_tools_with_context(mcp_server: MCPServer[Any]) -> None:
    @mcp_server.tool()
    async def count(to: int, ctx: Ctx, every: float = 0) -> str:
        """Count, and say how far it is."""
        for number in range(to):
            await anyio.sleep(every)
            await ctx.report_progress(number + 1, to, f"at {number + 1}")
        return f"counted to {to}"

    @mcp_server.tool()
    async def meta(ctx: Ctx) -> dict[str, Any]:
        """Tell what came along with the request."""
        return {key: value for key, value in (ctx.request_context.meta or {}).items() if isinstance(value, str)}

    @mcp_server.tool()
    async def header(name: str, ctx: Ctx) -> str:
        """Tell a header of the request."""
        return str((ctx.headers or {}).get(name))

    @mcp_server.tool()
    async def learn(name: str, ctx: Ctx) -> str:
        """Have one more tool."""
        mcp_server.add_tool(_say, name=name, description="Say its name.")
        if ctx.protocol_version == LATEST_MODERN_VERSION:
            await ctx.notify_tools_changed()
        else:
            await ctx.session.send_tool_list_changed()
        return "learned"

    @mcp_server.tool()
    async def forget(name: str, ctx: Ctx) -> str:
        """Have one tool less."""
        mcp_server.remove_tool(name)
        await ctx.notify_tools_changed()
        return "forgotten"


async def _say() -> str:
    return "said"


def _add_tools_that_wait(mcp_server: MCPServer[Any]) -> None:
    arrivals: list[None] = []

    @mcp_server.tool()
    async def meet() -> int:
        """Wait a moment, and tell how many do."""
        arrivals.append(None)
        try:
            await anyio.sleep(0.01)
            return len(arrivals)
        finally:
            arrivals.pop()

    @mcp_server.tool()
    async def hang(folder: str) -> str:
        """Wait for ever, and note in a folder what becomes of it."""
        Path(folder, "began").touch()
        try:
            await anyio.sleep_forever()
        finally:
            Path(folder, "cancelled").touch()
        return "never"

    @mcp_server.tool()
    async def leave(code: int) -> str:
        """End the server."""
        sys.stderr.write("I am leaving\n")
        sys.stderr.flush()
        os._exit(code)


def _serve_http() -> None:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(server().streamable_http_app(), log_level="critical")).run(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[1] == "http":
        _serve_http()
    else:
        anyio.run(server().run_stdio_async)
