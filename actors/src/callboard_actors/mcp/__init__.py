"""Tools, resources and prompts of MCP servers for agents: `McpServer`.

    async with McpServer(["npx", "-y", "@modelcontextprotocol/server-everything"]) as server:
        node = ToolNode([server])

The session belongs to the task of an actor. All callers share it, and it is opened again if the connection is lost.
"""

from importlib.util import find_spec

if find_spec("mcp") is None:
    from callboard.extend import install_command

    raise ImportError(f"callboard_actors.mcp needs mcp: {install_command('callboard-actors', 'mcp')}")

from callboard_actors.mcp._connection import McpBounds as McpBounds
from callboard_actors.mcp._server import McpServer as McpServer
from callboard_actors.mcp._tools import McpArtifact as McpArtifact
from callboard_actors.mcp._tools import McpToolError as McpToolError

__all__ = ["McpArtifact", "McpBounds", "McpServer", "McpToolError"]
