"""An MCP server over stdio whose tool returns the trace context that it received.

python -m tests.telemetry._mcp_server
"""

from mcp.server.mcpserver import Context, MCPServer

from callboard.telemetry import carrier, continued

server = MCPServer("elsewhere")


@server.tool()
async def where(ctx: Context) -> str:  # type: ignore[type-arg]
    """Tell the `traceparent` that was seen, or none."""
    with continued(ctx.request_context.meta):
        return carrier().get("traceparent", "none")


if __name__ == "__main__":
    server.run()
