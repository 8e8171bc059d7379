"""Task: serve a tool by MCP, and let an agent use an MCP server, here the same one."""

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client

from callboard import CallPolicy, ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls
from callboard_actors.mcp import McpServer
from callboard_actors.mcp_service import mcp_app


async def price(article: str) -> str:
    """Look up a price."""
    return f"{article}: 3.50"


async def main():
    app = mcp_app(ToolNode([price], timeout=10.0))
    transport = httpx2.ASGITransport(app)
    async with app.lifespan(), httpx2.AsyncClient(transport=transport) as http:

        def connect():
            return streamable_http_client("http://127.0.0.1/mcp", http_client=http)

        async with McpServer(connect, name="shop", prefix="shop_") as shop:
            node = ToolNode([shop], policies={"shop_price": CallPolicy(timeout=5.0)})
            agent = create_react_agent(ScriptedModel([calls(("shop_price", {"article": "tea"})), "3.50"]), node)
            messages = (await agent.ainvoke({"messages": [("user", "How much is tea?")]}))["messages"]

    assert messages[2].text == "tea: 3.50"
    assert messages[3].content == "3.50"


if __name__ == "__main__":
    anyio.run(main)
