"""The tools of an MCP server as tools of a node; on a server in this process, which answers at once."""

import anyio
import pytest
from langchain_core.messages import ToolMessage

from callboard import ToolNode
from callboard.testing import tool_call
from callboard_actors.mcp import McpServer

from ._served import server

WAIT = 20


async def answers(node: ToolNode, *calls: object) -> list[ToolMessage]:
    return (await node.ainvoke(list(calls)))["messages"]


async def test_an_open_server_is_given_to_a_node_like_a_tool() -> None:
    """Nobody has to know the names of its tools."""
    with anyio.fail_after(WAIT):
        async with McpServer(server()) as served:
            [message] = await answers(ToolNode([served]), tool_call("echo", "1", text="hello"))
    assert (message.text, message.status) == ("hello", "success")


def test_a_server_that_is_not_open_is_refused_by_a_node() -> None:
    """Its tools are not known yet; silence would be a model without tools."""
    with pytest.raises(RuntimeError, match=r"McpServer\('served'\) is not open.*async with"):
        ToolNode([McpServer(server())])


async def test_it_is_called_without_an_agent() -> None:
    """What the protocol says of a result is there, as it says it."""
    with anyio.fail_after(WAIT):
        async with McpServer(server()) as served:
            result = await served.call("echo", {"text": "hello"})
    assert result.structured_content == {"result": "hello"}
