"""The message that a model reads of a result, as users of langchain-mcp-adapters expect it, and some additions."""

import base64
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool, ToolException
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)

from callboard import ToolNode, tool_call
from callboard_actors.mcp import McpToolError
from callboard_actors.mcp._tools import content_and_artifact, content_of_error, metadata_of

from ._asked import answers

PIXEL = base64.b64encode(b"pixel").decode()


def result(*content: ContentBlock, **fields: Any) -> CallToolResult:
    return CallToolResult(content=list(content), **fields)


def text(content: str) -> TextContent:
    return TextContent(text=content)


def link(uri: str, mime_type: str | None = None) -> ResourceLink:
    return ResourceLink(uri=uri, name="it", mime_type=mime_type)


def blob(mime_type: str | None) -> EmbeddedResource:
    return EmbeddedResource(resource=BlobResourceContents(uri="mem://it", blob=PIXEL, mime_type=mime_type))


PARTS: list[tuple[ContentBlock, dict[str, Any]]] = [
    (text("words"), {"type": "text", "text": "words"}),
    (
        ImageContent(data=PIXEL, mime_type="image/jpeg"),
        {"type": "image", "base64": PIXEL, "mime_type": "image/jpeg"},
    ),
    (
        AudioContent(data=PIXEL, mime_type="audio/wav"),
        {"type": "file", "base64": PIXEL, "mime_type": "audio/wav"},
    ),
    (
        link("file:///a.pdf", "application/pdf"),
        {"type": "file", "url": "file:///a.pdf", "mime_type": "application/pdf"},
    ),
    (
        link("https://example.com/a.png", "image/png"),
        {"type": "image", "url": "https://example.com/a.png", "mime_type": "image/png"},
    ),
    (link("file:///unknown"), {"type": "file", "url": "file:///unknown"}),
    (
        EmbeddedResource(resource=TextResourceContents(uri="mem://it", text="hi")),
        {"type": "text", "text": "hi"},
    ),
    (blob("image/png"), {"type": "image", "base64": PIXEL, "mime_type": "image/png"}),
    (blob("application/zip"), {"type": "file", "base64": PIXEL, "mime_type": "application/zip"}),
    (blob(None), {"type": "file", "base64": PIXEL}),
]


def test_each_part_becomes_the_block_that_models_take_and_langchain_keeps_it() -> None:
    """If langchain-core does not know one block of a list, it turns the whole list into text, base64 included."""
    message = tool(result(*(part for part, _ in PARTS))).invoke(tool_call("give", "1"))
    assert message.content == [block for _, block in PARTS]


WORDS = [{"type": "text", "text": "words"}]


@pytest.mark.parametrize(
    ("outcome", "content", "artifact"),
    [
        (result(), [], None),
        *(
            (result(text("words"), structured_content=value), WORDS, {"structured_content": value})
            for value in ({"sum": 7}, [1, 2], 0, "", False)
        ),
        (
            result(structured_content={"city": "Żory"}),
            [{"type": "text", "text": '{"city": "Żory"}'}],
            {"structured_content": {"city": "Żory"}},
        ),
        (result(text("words"), _meta={"example.com/cost": 3}), WORDS, {"meta": {"example.com/cost": 3}}),
    ],
)
def test_structured_content_and_meta_are_the_artifact(outcome: CallToolResult, content: Any, artifact: Any) -> None:
    """Programs read any JSON value there; a model reads it only if the server has sent no text."""
    assert content_and_artifact(outcome) == (content, artifact)


def test_a_failure_is_an_error_with_the_servers_words() -> None:
    """Code that calls a server directly gets an exception with the server's reason."""
    with pytest.raises(McpToolError, match=r"^no such file\ntry another$"):
        content_and_artifact(result(text("no such file"), text("try another"), is_error=True))


@pytest.mark.parametrize(
    ("part", "pattern"), [([], "does not say why"), ([ImageContent(data=PIXEL * 9, mime_type="image/png")], "1 images")]
)
def test_a_failure_without_words_says_so_and_not_its_base64(part: list[ContentBlock], pattern: str) -> None:
    """Error texts are written to logs, so they must not contain base64."""
    with pytest.raises(McpToolError, match=pattern) as caught:
        content_and_artifact(result(*part, is_error=True))
    assert PIXEL not in str(caught.value)


async def test_a_model_reads_a_failure_and_the_run_goes_on() -> None:
    """A failed tool does not crash the agent; images in its error are kept."""
    image = ImageContent(data=PIXEL, mime_type="image/png")
    message = await answer(tool(result(text("no such file"), image, is_error=True)))
    assert message.status == "error"
    assert message.content == [
        {"type": "text", "text": "no such file"},
        {"type": "image", "base64": PIXEL, "mime_type": "image/png"},
    ]


async def test_the_structured_content_of_an_error_without_words_reaches_the_model() -> None:
    message = await answer(tool(result(is_error=True, structured_content={"code": "RATE_LIMITED"}, _meta={"n": 3})))
    assert message.status == "error"
    assert message.text == '{"code": "RATE_LIMITED"}'
    assert message.artifact == {"structured_content": {"code": "RATE_LIMITED"}, "meta": {"n": 3}}


async def test_a_failure_without_content_is_no_empty_message() -> None:
    """Some model providers refuse a tool message without content."""
    message = await answer(tool(result(is_error=True)))
    assert message.status == "error"
    assert "does not say why" in str(message.content)


async def test_an_error_of_somebody_else_is_not_taken_for_the_servers() -> None:
    """A `ToolException` that does not come from the server is raised, not shown to the model as the server's error."""
    with pytest.raises(ToolException, match="not mine"):
        await answer(tool(ToolException("not mine")))


def test_hints_and_meta_of_a_tool_are_its_metadata() -> None:
    """Approval rules often look up `readOnlyHint`, by the name that the protocol uses."""
    described = Tool(
        name="now",
        input_schema={"type": "object"},
        annotations=ToolAnnotations(title="Time", read_only_hint=True),
        _meta={"flavour": {"sour": 1}},
    )
    assert metadata_of(described) == {
        "title": "Time",
        "readOnlyHint": True,
        "destructiveHint": None,
        "idempotentHint": None,
        "openWorldHint": None,
        "idempotent": True,
        "_meta": {"flavour": {"sour": 1}},
    }
    assert metadata_of(Tool(name="now", input_schema={"type": "object"})) is None


@pytest.mark.parametrize(
    ("hints", "is_marked"),
    [({"read_only_hint": True}, True), ({"idempotent_hint": True}, True), ({"idempotent_hint": False}, False)],
    ids=["reads only", "idempotent", "not idempotent"],
)
def test_a_tool_that_its_server_calls_safe_to_repeat_is_marked_so(hints: dict[str, bool], is_marked: bool) -> None:
    """A node reads `metadata["idempotent"]`; a tool without the hint has no such key."""
    described = Tool(name="now", input_schema={"type": "object"}, annotations=ToolAnnotations(**hints))
    assert ("idempotent" in (metadata_of(described) or {})) is is_marked


def tool(outcome: CallToolResult | Exception) -> StructuredTool:
    """Return a tool that gives this result of a server, as the server's own tools do."""

    def give() -> Any:
        """Give it."""
        if isinstance(outcome, Exception):
            raise outcome
        return content_and_artifact(outcome)

    structured_tool = StructuredTool.from_function(give, response_format="content_and_artifact")
    structured_tool.handle_tool_error = content_of_error
    return structured_tool


async def answer(tested_tool: StructuredTool) -> ToolMessage:
    return (await answers(ToolNode([tested_tool]), tool_call("give", "1")))[0]
