"""Conversion of a server's results to content blocks of LangChain for models, and artifacts for programs."""

import json
from collections.abc import Sequence
from typing import Any, NotRequired, TypeAlias, cast

from langchain_core.messages.content import FileContentBlock, ImageContentBlock, TextContentBlock
from langchain_core.tools import ToolException
from mcp import types
from typing_extensions import TypedDict

Block: TypeAlias = TextContentBlock | ImageContentBlock | FileContentBlock
"""Content block for a model. langchain-core accepts these three in a tool's message, but no audio blocks."""


class McpArtifact(TypedDict):
    """Part of a tool's result that is meant for programs; it becomes the artifact of the tool's message."""

    structured_content: NotRequired[Any]
    """Structured content of the result, as the tool's output schema describes it."""
    meta: NotRequired[dict[str, Any]]
    """Field `_meta` of the result, as the server sent it."""


class McpToolError(ToolException):
    """Raised if a tool of a server reports a failure (`isError`), or the server's answer is unusable.

    Tools of a server turn it into a message with `status="error"`; `content` has the server's blocks.
    """

    def __init__(self, said: Sequence[Block] | str) -> None:
        self.content: list[Block] = [as_text(said)] if isinstance(said, str) else list(said)
        super().__init__(_summary(self.content))


def content_and_artifact(result: types.CallToolResult) -> tuple[list[Block], McpArtifact | None]:
    """Return two values for a tool's result: content for the model, and an artifact for programs (`None` without one).

    Raise `McpToolError` if the server reports a failure.
    """
    content = [as_block(part) for part in result.content]
    if result.is_error:
        raise McpToolError(content)
    artifact = McpArtifact()
    if result.structured_content is not None:
        artifact["structured_content"] = result.structured_content
        content = content or [as_text(json.dumps(result.structured_content, ensure_ascii=False))]
    if result.meta:
        artifact["meta"] = result.meta
    return content, artifact or None


def content_of_error(error: ToolException) -> list[str | dict[str, Any]]:
    """Return the error of a tool call as content for the model; passed to LangChain tools as `handle_tool_error`.

    An error that is not a `McpToolError` is raised again.
    """
    if not isinstance(error, McpToolError):
        raise error
    return [*map(dict, error.content or [as_text(str(error))])]


def as_block(part: types.ContentBlock) -> Block:
    """Convert a content block of a server to one of LangChain.

    Audio becomes a file block, because tool messages allow no audio blocks.
    """
    match part:
        case types.TextContent():
            return as_text(part.text)
        case types.ImageContent():
            return ImageContentBlock(type="image", base64=part.data, mime_type=part.mime_type)
        case types.AudioContent():
            return FileContentBlock(type="file", base64=part.data, mime_type=part.mime_type)
        case types.ResourceLink():
            return _media(part.mime_type, url=part.uri)
        case types.EmbeddedResource():
            return resource_block(part.resource)


def resource_block(resource: types.TextResourceContents | types.BlobResourceContents) -> Block:
    """Convert the contents of a resource to a content block: text, or an image or a file in base64."""
    if isinstance(resource, types.TextResourceContents):
        return as_text(resource.text)
    return _media(resource.mime_type, base64=resource.blob)


def metadata_of(tool: types.Tool) -> dict[str, Any] | None:
    """Return the metadata of a LangChain tool from the hints and `_meta` of a server's tool; `None` if it has neither.

    A read-only or idempotent tool is marked as `idempotent`, so that its calls may be retried.
    """
    hints = {} if tool.annotations is None else tool.annotations.model_dump(by_alias=True)
    if hints.get("readOnlyHint") or hints.get("idempotentHint"):
        hints["idempotent"] = True
    return {**hints, **({} if tool.meta is None else {"_meta": tool.meta})} or None


def as_text(text: str) -> TextContentBlock:
    """Return a text as a content block."""
    return TextContentBlock(type="text", text=text)


def _media(mime_type: str | None, **data: str) -> Block:
    """Return an image block or a file block; `data` is its `url`, or its content as `base64`."""
    kind = "image" if mime_type is not None and mime_type.startswith("image/") else "file"
    return cast("Block", {"type": kind, **data, **({"mime_type": mime_type} if mime_type else {})})


def _summary(content: Sequence[Block]) -> str:
    """Return the text of a tool error from the content blocks of the server.

    Other blocks than texts are only counted: they may be megabytes of base64.
    """
    if texts := [block["text"] for block in content if block["type"] == "text"]:
        return "\n".join(texts)
    if content:
        return f"The tool failed, and its server says so without words, in {len(content)} images or files."
    return "The tool failed, and its server does not say why."
