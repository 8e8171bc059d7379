"""Resources and prompts of a server: methods for programs, and optional tools for models."""

import base64
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage

from callboard import ToolNode, tool_call
from callboard_actors.mcp import McpServer, McpToolError

from ._asked import answers

PNG = b"\x89PNG not really"
ERAS = ["auto", "legacy"]


def library() -> MCPServer[Any]:
    mcp_server: MCPServer[Any] = MCPServer("library")

    @mcp_server.resource("books://index", description="All titles.", mime_type="text/plain")
    async def index() -> str:
        return "Moby-Dick"

    @mcp_server.resource("books://cover", mime_type="image/png")
    async def cover() -> bytes:
        return PNG

    @mcp_server.resource("books://{title}/first-line", description="How a book begins.")
    async def first_line(title: str) -> str:
        return f"{title}: Call me Ishmael."

    @mcp_server.prompt()
    async def review(title: str, tone: str = "kind") -> list[Any]:
        """Review a book."""
        return [UserMessage(f"Review {title}, and be {tone}."), AssistantMessage("Gladly.")]

    @mcp_server.prompt()
    async def picture() -> list[Any]:
        """Look at a picture."""
        return [UserMessage(Image(data=PNG, format="png").to_image_content())]

    return mcp_server


@pytest.mark.real_clock  # the SDK looks up a resource template in a thread
@pytest.mark.parametrize("mode", ERAS)
async def test_a_resource_is_read_as_blobs(mode: str) -> None:
    """Text and bytes keep their type whatever their encoding was, and carry the URI of the resource."""
    async with McpServer(library(), mode=mode) as server:
        listed = [resource.uri for resource in await server.list_resources()]
        templates = [resource.uri_template for resource in await server.list_resource_templates()]
        [text], [image] = await server.read_resource("books://index"), await server.read_resource("books://cover")
        [line] = await server.read_resource("books://Moby/first-line")

    assert (listed, templates) == (["books://index", "books://cover"], ["books://{title}/first-line"])
    assert (text.as_string(), text.mimetype, text.metadata) == ("Moby-Dick", "text/plain", {"uri": "books://index"})
    assert (image.as_bytes(), image.mimetype) == (PNG, "image/png")
    assert line.as_string() == "Moby: Call me Ishmael."


@pytest.mark.parametrize("mode", ERAS)
async def test_a_prompt_is_the_beginning_of_a_conversation(mode: str) -> None:
    """Messages keep the roles of the prompt; content other than text becomes blocks that models accept."""
    async with McpServer(library(), mode=mode) as server:
        listed = [prompt.name for prompt in await server.list_prompts()]
        request, gladly = await server.get_prompt("review", {"title": "Moby-Dick"})
        [picture] = await server.get_prompt("picture")

    assert listed == ["review", "picture"]
    assert (type(request), request.text, type(gladly)) == (HumanMessage, "Review Moby-Dick, and be kind.", AIMessage)
    encoded = base64.b64encode(PNG).decode()
    assert picture.content == [{"type": "image", "base64": encoded, "mime_type": "image/png"}]


async def test_a_model_has_them_as_tools_where_they_are_asked_for() -> None:
    """By default models get no tools for resources and prompts, because each tool costs tokens in each request."""
    async with McpServer(library()) as plain:
        assert plain.tools == []
    async with McpServer(library(), resources=True, prompts=True, prefix="lib_") as server:
        node = ToolNode([server])
        assert sorted(node.tools_by_name) == [
            *("lib_get_prompt", "lib_list_prompts", "lib_list_resources", "lib_read_resource"),
        ]
        listed, prompts, read, filled = await answers(
            node,
            tool_call("lib_list_resources", "1"),
            tool_call("lib_list_prompts", "2"),
            tool_call("lib_read_resource", "3", uri="books://cover"),
            tool_call("lib_get_prompt", "4", name="review", arguments={"title": "Emma", "tone": "dry"}),
        )

    assert listed.text.splitlines() == [
        "books://index (text/plain): All titles.",
        "books://cover (image/png): cover",
        "books://{title}/first-line (text/plain): How a book begins.",
    ]
    assert prompts.text.splitlines() == [
        "review(title, tone (optional)): Review a book.",
        "picture(): Look at a picture.",
    ]
    assert read.content[0]["type"] == "image"  # type: ignore[index]
    assert "Review Emma, and be dry." in filled.text


async def test_a_resource_that_is_not_there_is_news_for_the_model_and_an_error_for_a_program() -> None:
    """Models guess URIs, so a wrong one must not close the connection."""
    async with McpServer(library(), resources=True) as server:
        [message] = await answers(ToolNode([server]), tool_call("read_resource", "1", uri="books://nowhere"))
        with pytest.raises(McpToolError, match=r"books://nowhere"):
            await server.read_resource("books://nowhere")

    assert message.status == "error"
    assert "books://nowhere" in message.text


@pytest.mark.parametrize("option", ["resources", "prompts"])
async def test_what_a_server_does_not_have_is_not_offered(option: str) -> None:
    """A model would call useless tools again and again. The author of the option gets an error at once."""
    from mcp.server.lowlevel import Server

    bare: Server[Any] = Server("bare", on_list_tools=_no_tools)
    with pytest.raises(ValueError, match=rf"{option}=True.*'bare' has no {option}; leave it out"):
        async with McpServer(bare, **{option: True}):
            raise AssertionError("it was opened")


async def _no_tools(*_: object) -> Any:
    from mcp_types import ListToolsResult

    return ListToolsResult(tools=[])
