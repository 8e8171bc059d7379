"""What a server's tool gives, as a model and a program read it: content blocks of LangChain, and an artifact."""

import json
from collections.abc import Sequence
from typing import Any, NotRequired, TypeAlias, cast

from langchain_core.messages.content import FileContentBlock, ImageContentBlock, TextContentBlock
from langchain_core.tools import ToolException
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
)
from typing_extensions import TypedDict

Block: TypeAlias = TextContentBlock | ImageContentBlock | FileContentBlock
"""A part of what a model reads; langchain-core takes these three in a tool's message, and no sounds by their name."""


class McpArtifact(TypedDict):
    """What of a result is for programs; the artifact of a tool's message."""

    structured_content: NotRequired[Any]
    """What the tool's output schema describes."""
    meta: NotRequired[dict[str, Any]]
    """The `_meta` of the result."""


class McpToolError(ToolException):
    """A server's tool ran, and says that it failed (`isError`).

    The tools of a server make a message with `status="error"` of it, which the model reads and can act on; called
    directly, it is raised.

    Args:
        said: what the server says of the failure, or what is to be said of the server.
    """

    def __init__(self, said: Sequence[Block] | str) -> None:
        self.content: list[Block] = [as_text(said)] if isinstance(said, str) else list(said)
        super().__init__(_summary(self.content))


def content_and_artifact(result: CallToolResult) -> tuple[list[Block], McpArtifact | None]:
    """What a model reads of a result, and what is there for programs, if anything.

    Raises:
        McpToolError: the tool says that it failed.
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
    """What a model reads of a failed tool: for `handle_tool_error` of a LangChain tool.

    Raises:
        ToolException: the error, if it is not a server's: whoever raised it has others to tell.
    """
    if not isinstance(error, McpToolError):
        raise error
    return [*map(dict, error.content or [as_text(str(error))])]


def as_block(part: ContentBlock) -> Block:
    """A part of a server's content as LangChain's. A sound is a file, because no tool's message may have sounds."""
    match part:
        case TextContent():
            return as_text(part.text)
        case ImageContent():
            return ImageContentBlock(type="image", base64=part.data, mime_type=part.mime_type)
        case AudioContent():
            return FileContentBlock(type="file", base64=part.data, mime_type=part.mime_type)
        case ResourceLink():
            return _elsewhere(part)
        case EmbeddedResource():
            return resource_block(part.resource)


def resource_block(resource: TextResourceContents | BlobResourceContents) -> Block:
    """The contents of a resource: its text, or an image or a file in base64."""
    if isinstance(resource, TextResourceContents):
        return as_text(resource.text)
    if _is_image(resource.mime_type):
        return ImageContentBlock(type="image", base64=resource.blob, mime_type=cast("str", resource.mime_type))
    block = FileContentBlock(type="file", base64=resource.blob)
    if resource.mime_type:
        block["mime_type"] = resource.mime_type
    return block


def metadata_of(tool: Tool) -> dict[str, Any] | None:
    """What a server says of a tool beside its schema: hints by the protocol's names, and `_meta`.

    A tool that only reads, or that the server calls idempotent, is marked as safe to repeat.
    """
    hints = {} if tool.annotations is None else tool.annotations.model_dump(by_alias=True)
    if hints.get("readOnlyHint") or hints.get("idempotentHint"):
        hints["idempotent"] = True
    return {**hints, **({} if tool.meta is None else {"_meta": tool.meta})} or None


def as_text(text: str) -> TextContentBlock:
    """Words for a model."""
    return TextContentBlock(type="text", text=text)


def _elsewhere(link: ResourceLink) -> Block:
    if _is_image(link.mime_type):
        return ImageContentBlock(type="image", url=link.uri, mime_type=cast("str", link.mime_type))
    block = FileContentBlock(type="file", url=link.uri)
    if link.mime_type:
        block["mime_type"] = link.mime_type
    return block


def _is_image(mime_type: str | None) -> bool:
    return mime_type is not None and mime_type.startswith("image/")


def _summary(content: Sequence[Block]) -> str:
    """An error in words; what is no text may be megabytes of base64."""
    if texts := [block["text"] for block in content if block["type"] == "text"]:
        return "\n".join(texts)
    if content:
        return f"The tool failed, and its server says so without words, in {len(content)} images or files."
    return "The tool failed, and its server does not say why."
