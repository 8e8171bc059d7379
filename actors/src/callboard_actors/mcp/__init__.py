"""MCP servers as actors: `McpServer`.

    async with McpServer(["npx", "-y", "@modelcontextprotocol/server-everything"]) as server:
        node = ToolNode([server])

The session belongs to a task of its own. All callers share it, and it is opened again if the connection is lost.
"""

from importlib.util import find_spec

if find_spec("mcp") is None:
    raise ImportError("callboard_actors.mcp needs mcp: pip install 'callboard-actors[mcp]'")

from callboard_actors.mcp._content import McpArtifact as McpArtifact
from callboard_actors.mcp._content import McpToolError as McpToolError
from callboard_actors.mcp._plan import McpBounds as McpBounds
from callboard_actors.mcp._server import McpServer as McpServer

__all__ = ["McpArtifact", "McpBounds", "McpServer", "McpToolError"]
