"""The reference server "everything" from npm, over stdio and HTTP."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from callboard import ToolNode, tool_call
from callboard_actors.mcp import McpServer

from ._asked import WAIT, answers
from ._npm import command, everything_over_http

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),  # the SDK leaves streams open
]

over_both = pytest.mark.parametrize("over", ["stdio", "http"])


@asynccontextmanager
async def everything(over: str, **options: Any) -> AsyncGenerator[McpServer]:
    with anyio.fail_after(2 * WAIT):
        if over == "stdio":
            async with McpServer([*command("server-everything"), "stdio"], name="everything", **options) as server:
                yield server
        else:
            async with everything_over_http() as url, McpServer(url, name="everything", **options) as server:
                yield server


def kinds(content: Any) -> list[str]:
    return [block["type"] for block in content]


@over_both
async def test_each_kind_of_content_arrives_as_a_block(over: str) -> None:
    """Images, embedded resources, resource links, structured content and errors arrive besides text."""
    async with everything(over) as server:
        echo, wrong, picture, links, embedded, weather = await answers(
            ToolNode([server]),
            tool_call("echo", "5", message="hello"),
            tool_call("get-sum", "6", a="two"),
            tool_call("get-tiny-image", "1"),
            tool_call("get-resource-links", "2", count=2),
            tool_call("get-resource-reference", "3", resourceType="Blob", resourceId=1),
            tool_call("get-structured-content", "4", location="Chicago"),
        )

    assert (echo.text, wrong.status) == ("Echo: hello", "error")
    assert kinds(picture.content) == ["text", "image", "text"]
    assert kinds(links.content) == ["text", "file", "file"]
    assert links.content[1]["url"].startswith("demo://resource/")  # type: ignore[index]
    assert kinds(embedded.content) == ["text", "file", "text"]
    assert set(weather.artifact["structured_content"]) == {"temperature", "conditions", "humidity"}
