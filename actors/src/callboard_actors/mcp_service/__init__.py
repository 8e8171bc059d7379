"""MCP server for tools, a `ToolNode` or an agent, over stdio or streamable HTTP. `callboard mcp` runs it, too.

await serve_mcp([search, book])                                  # for the client that started this process
await serve_mcp(node, transport="http", port=8000)               # for any client
app = mcp_app(agent, allowed_hosts=["tools.example.com"])        # under any ASGI server

Every call is a supervised call: it has the timeouts, limits and middleware of its node, continues the client's trace,
and is cancelled when the client cancels it. Questions to a person go to the client's user.
"""

from typing import TYPE_CHECKING, Any

from callboard_actors._util._extras import check_installed
from callboard_actors._util._on_demand import on_demand

if TYPE_CHECKING:
    from callboard_actors.mcp_service._http import McpApp as McpApp
    from callboard_actors.mcp_service._serve import mcp_app as mcp_app
    from callboard_actors.mcp_service._serve import serve_mcp as serve_mcp

__all__ = ["McpApp", "mcp_app", "serve_mcp"]

_get = on_demand(
    __name__,
    {
        "McpApp": "callboard_actors.mcp_service._http",
        "mcp_app": "callboard_actors.mcp_service._serve",
        "serve_mcp": "callboard_actors.mcp_service._serve",
    },
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        check_installed("an MCP server", "mcp", extra="mcp")
    return _get(name)
