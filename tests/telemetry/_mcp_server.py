"""An MCP server over stdio, whose tool tells which trace it is part of.

python -m tests.telemetry._mcp_server
"""

from mcp.server.fastmcp import Context, FastMCP

from callboard.telemetry import carrier, continued

server = FastMCP("elsewhere")


@server.tool()
async def where(ctx: Context) -> str:  # type: ignore[type-arg]
    """Tell the `traceparent` that was seen, or none."""
    meta = ctx.request_context.meta
    with continued(None if meta is None else meta.model_dump()):
        return carrier().get("traceparent", "none")


if __name__ == "__main__":
    server.run()
