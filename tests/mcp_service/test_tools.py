"""Listing of tools for MCP clients, and the results and errors of their calls."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, ToolException, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.types import Command
from mcp import MCPError, types
from pydantic import BaseModel
from typing_extensions import TypedDict

from callboard import InjectedState, InjectedStore, ToolNode, ToolRuntime
from callboard.exceptions import DuplicateToolWarning
from callboard_actors.mcp_service import mcp_app

from ._clients import client_of, in_both_eras, text_in, tools_of


class Stay(BaseModel):
    """A night somewhere."""

    hotel: str
    nights: int = 1


class Price(TypedDict):
    amount: float
    currency: str


@dataclass
class Place:
    name: str


async def search(town: str, stars: int = 3) -> str:
    """Search for hotels.

    Args:
        town: where.
        stars: at least.
    """
    return f"{stars} in {town}"


async def book(stay: Stay) -> Stay:
    """Book."""
    return stay


async def price(hotel: str) -> Price:
    """What a night costs."""
    return {"amount": 80.0, "currency": "EUR"}


async def place() -> Place:
    """Where it is."""
    return Place("Oslo")


async def picture(call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
    """A picture and what is known of it."""
    blocks: list[Any] = [
        {"type": "text", "text": "here"},
        {"type": "image", "base64": "aGVsbG8=", "mime_type": "image/png"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
        {"type": "image", "url": "https://example.com/a.png"},
        {"type": "file", "source_type": "base64", "data": "aGVsbG8=", "mime_type": "application/pdf"},
        {"type": "json", "json": {"rooms": 3}},
    ]
    return ToolMessage(blocks, artifact={"width": 3}, tool_call_id=call_id)


@in_both_eras
async def test_a_client_sees_what_a_model_sees(era: str) -> None:
    """Name, description and schema equal those that a chat model is bound to."""
    listed_tool = (await tools_of([search], era))["search"]
    function = convert_to_openai_tool(tool(search))["function"]

    assert (listed_tool.description, listed_tool.input_schema["properties"]) == (
        function["description"],
        function["parameters"]["properties"],
    )
    assert listed_tool.input_schema["required"] == ["town"]


async def test_what_is_injected_is_not_shown() -> None:
    """A client's value for an injected argument would be ignored."""

    async def look(
        town: str,
        call_id: Annotated[str, InjectedToolCallId],
        runtime: ToolRuntime,
        user: Annotated[str | None, InjectedState("user")] = None,
        region: Annotated[str, InjectedToolArg] = "north",
    ) -> str:
        """Look."""
        return f"{town} {user} {region} {bool(call_id)} {runtime.store}"

    assert set((await tools_of([look]))["look"].input_schema["properties"]) == {"town"}
    async with client_of([look], "legacy") as client:
        result = await client.call_tool("look", {"town": "Oslo", "region": "south"})

    assert text_in(result) == "Oslo None north True None"


def of_state(state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Takes all of it."""
    return ""


def of_field(user: Annotated[str, InjectedState("user")]) -> str:
    """Takes a part of it."""
    return ""


def of_store(store: Annotated[Any, InjectedStore()]) -> str:
    """Takes the store."""
    return ""


def of_somebody(key: Annotated[str, InjectedToolArg]) -> str:
    """Takes what somebody injects."""
    return ""


@pytest.mark.parametrize("needy", [of_state, of_field, of_store, of_somebody])
def test_a_tool_that_needs_a_graph_is_refused_at_the_start(needy: Any) -> None:
    """Without a graph each call would fail or see a meaningless state."""
    with pytest.raises(ValueError, match=f"the tool '{needy.__name__}' cannot be served by itself: its argument"):
        mcp_app([search, needy])


@pytest.mark.parametrize(
    ("served", "kind", "message"),
    [
        (3, TypeError, "an MCP server serves a ToolNode, an agent"),
        ([Stay], TypeError, "an MCP server serves a ToolNode, an agent"),
        ([], ValueError, "there is nothing to serve"),
        ([search, search], DuplicateToolWarning, "two tools are named 'search'"),  # an error in these tests
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start(served: Any, kind: type[Exception], message: str) -> None:
    """The error comes before the first client connects."""
    with pytest.raises(kind, match=message):
        mcp_app(served)


async def test_title_and_hints_come_from_the_metadata_of_a_tool() -> None:
    """The names are those of the protocol, as langchain-mcp-adapters puts them into the metadata."""
    search_tool = tool(search)
    search_tool.metadata = {"title": "Hotels", "readOnlyHint": True, "openWorldHint": False, "other": 1}
    listed_tool = (await tools_of(ToolNode([search_tool])))["search"]

    assert listed_tool.title == "Hotels"
    assert listed_tool.annotations == types.ToolAnnotations(read_only_hint=True, open_world_hint=False)


@in_both_eras
async def test_objects_are_structured_content_and_the_same_text(era: str) -> None:
    """A client program reads the structured content, its model the text; the SDK's client validates the schema."""
    async with client_of([book, price, place, search], era) as client:
        tools = {listed_tool.name: listed_tool for listed_tool in (await client.list_tools()).tools}
        results = {
            "book": await client.call_tool("book", {"stay": {"hotel": "Minerva"}}),
            "price": await client.call_tool("price", {"hotel": "Minerva"}),
            "place": await client.call_tool("place", {}),
        }
        plain = await client.call_tool("search", {"town": "Oslo"})

    assert results["book"].structured_content == {"hotel": "Minerva", "nights": 1}
    assert results["price"].structured_content == {"amount": 80.0, "currency": "EUR"}
    assert results["place"].structured_content == {"name": "Oslo"}
    for name, result in results.items():
        assert json.loads(text_in(result)) == result.structured_content
        assert (tools[name].output_schema or {})["type"] == "object"
    assert (plain.structured_content, tools["search"].output_schema) == (None, None)


async def test_a_result_that_is_not_what_the_tool_says_is_an_error() -> None:
    """The error must not blame the arguments, which the model would then try to repair."""

    async def wrong() -> Price:
        """Return something else."""
        return {"amount": "much"}  # type: ignore[typeddict-item]

    async with client_of([wrong], "legacy") as client:
        result = await client.call_tool("wrong", {})

    assert result.is_error
    assert "the tool 'wrong' did not return what its annotation says" in text_in(result)


async def test_a_node_promises_no_schema_and_gives_the_object_that_there_is() -> None:
    """Middleware may replace any result by text; with a declared schema the client would treat this as an error."""

    async def shorten(request: Any, call_next: Any) -> Any:
        message = await call_next(request)
        return (
            message.model_copy(update={"content": message.content[:5]}) if request.tool_call["args"]["cut"] else message
        )

    async def sized(cut: bool) -> dict[str, int]:
        """Say how large it is."""
        return {"width": 3}

    async with client_of(ToolNode([sized], middleware=[shorten]), "legacy") as client:
        [listed_tool] = (await client.list_tools()).tools
        uncut, cut = [await client.call_tool("sized", {"cut": is_cut}) for is_cut in (False, True)]

    assert listed_tool.output_schema is None
    assert (uncut.structured_content, cut.structured_content) == ({"width": 3}, None)


@in_both_eras
async def test_blocks_are_told_in_the_words_of_the_protocol(era: str) -> None:
    """Images, audio and files keep their type; other blocks become JSON text. An artifact is structured content."""
    async with client_of([picture], era) as client:
        result = await client.call_tool("picture", {})
    text, image, of_url, link, file, json_text = result.content

    assert text == types.TextContent(text="here")
    assert image == of_url == types.ImageContent(data="aGVsbG8=", mime_type="image/png")
    assert isinstance(link, types.ResourceLink)
    assert link.uri == "https://example.com/a.png"
    assert isinstance(file, types.EmbeddedResource)
    assert isinstance(json_text, types.TextContent)
    assert json.loads(json_text.text) == {"type": "json", "json": {"rooms": 3}}
    assert result.structured_content == {"width": 3}


async def test_sound_is_sound() -> None:
    """Chat models accept no audio in results, so a node writes it as text unless middleware adds it."""
    sound = {"type": "audio", "base64": "aGVsbG8=", "mime_type": "audio/mpeg"}

    async def add_sound(request: Any, call_next: Any) -> Any:
        return ToolMessage([sound, "heard"], tool_call_id=request.tool_call["id"])

    async with client_of(ToolNode([search], middleware=[add_sound]), "legacy") as client:
        result = await client.call_tool("search", {"town": "Oslo"})

    assert result.content == [
        types.AudioContent(data="aGVsbG8=", mime_type="audio/mpeg"),
        types.TextContent(text="heard"),
    ]


async def test_a_message_in_a_command_is_what_the_client_reads() -> None:
    """There is no graph whose state a command could change; a command without a message is an error."""

    async def moved(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Answer by a command."""
        return Command(update={"messages": [ToolMessage("moved", tool_call_id=call_id)]})

    async def left() -> Command[Any]:
        """Leave for another graph."""
        return Command(graph=Command.PARENT, goto="other")

    async with client_of([moved, left], "legacy") as client:
        answered, gone = await client.call_tool("moved", {}), await client.call_tool("left", {})

    assert text_in(answered) == "moved"
    assert gone.is_error
    assert "command" in text_in(gone)


@in_both_eras
async def test_errors_are_what_the_model_would_read(era: str) -> None:
    """The client's model can react to the error, whether a node handles the error or raises it."""

    async def breaks() -> str:
        """Break."""
        raise OSError("disk full")

    async def told() -> str:
        """Say what is wrong."""
        raise ToolException("no such hotel")

    async with client_of([breaks, told, search], era) as client:
        of_list = await client.call_tool("breaks", {})
        of_tool_exception = await client.call_tool("told", {})
        invalid = await client.call_tool("search", {"town": "Oslo", "stars": "many"})
        with pytest.raises(MCPError, match="Unknown tool: nothing; there are breaks, told, search"):
            await client.call_tool("nothing", {})
    async with client_of(ToolNode([breaks]), era) as client:
        of_node = await client.call_tool("breaks", {})

    assert all(result.is_error for result in (of_list, of_tool_exception, invalid, of_node))
    assert text_in(of_list) == text_in(of_node) == "Error: OSError('disk full')\n Please fix your mistakes."
    assert "no such hotel" in text_in(of_tool_exception)
    assert "stars" in text_in(invalid)


async def test_a_tool_that_is_held_back_is_not_listed() -> None:
    """An open circuit breaker hides its tool from clients as it does from models."""

    class Closed:
        is_open = False

        async def awrap_tool_call(self, request: Any, call_next: Any) -> Any:
            return await call_next(request)

        def offers(self, tool: Any) -> bool:
            return self.is_open

    door = Closed()
    async with client_of(ToolNode([search], middleware=[door]), "legacy") as client:
        before = (await client.list_tools()).tools
        door.is_open = True
        after = (await client.list_tools()).tools

    assert ([listed_tool.name for listed_tool in before], [listed_tool.name for listed_tool in after]) == (
        [],
        ["search"],
    )


async def test_a_typed_dict_of_any_python_is_an_object() -> None:
    """Pydantic supports `typing.TypedDict` since Python 3.12; before, the schema is a plain object."""
    import typing

    class Old(typing.TypedDict):
        amount: float

    async def price_of(hotel: str) -> Old:
        """Say the price."""
        return {"amount": 80.0}

    price_of.__annotations__["return"] = Old
    async with client_of([price_of], "legacy") as client:
        [listed_tool] = (await client.list_tools()).tools
        result = await client.call_tool("price_of", {"hotel": "Minerva"})

    assert (listed_tool.output_schema or {})["type"] == "object"
    assert result.structured_content == {"amount": 80.0}
