"""Tools, resources and prompts of MCP servers for agents: `McpServer`.

    async with McpServer(["npx", "-y", "@modelcontextprotocol/server-everything"]) as server:
        node = ToolNode([server])

The session belongs to the task of an actor. All callers share it, and it is opened again if the connection is lost.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from callboard_actors._util._on_demand import on_demand

if find_spec("mcp") is None:
    from callboard.extend import install_command

    raise ImportError(f"callboard_actors.mcp needs mcp: {install_command('callboard-actors', 'mcp')}")

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
