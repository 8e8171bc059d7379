"""Tools, resources and prompts of MCP servers for agents: `McpServer`.

    async with McpServer(["npx", "-y", "@modelcontextprotocol/server-everything"]) as server:
        node = ToolNode([server])

The session belongs to the task of an actor. All callers share it, and it is opened again if the connection is lost.
"""

from typing import TYPE_CHECKING

from callboard_actors._util._extras import check_installed
from callboard_actors._util._on_demand import on_demand

check_installed("callboard_actors.mcp", "mcp", extra="mcp")

if TYPE_CHECKING:
    from callboard_actors.mcp._connection import McpBounds as McpBounds
    from callboard_actors.mcp._server import McpServer as McpServer
    from callboard_actors.mcp._tools import McpArtifact as McpArtifact
    from callboard_actors.mcp._tools import McpToolError as McpToolError

__all__ = ["McpArtifact", "McpBounds", "McpServer", "McpToolError"]

__getattr__ = on_demand(
    __name__,
    {
        "McpArtifact": "callboard_actors.mcp._tools",
        "McpBounds": "callboard_actors.mcp._connection",
        "McpServer": "callboard_actors.mcp._server",
        "McpToolError": "callboard_actors.mcp._tools",
    },
)
