"""What a call ended with, as an MCP client is told it: content for its model, structured content for its program."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from langchain_core.messages import BaseMessage, ToolMessage, is_data_content_block
from langgraph.types import Command
from mcp import types
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from callboard import TOOL_CALL_ERROR_TEMPLATE
from callboard_actors.mcp import McpArtifact

ERRORS_OF_CALLS: Final = (Exception, SystemExit, KeyboardInterrupt)
"""What a call may end with, and its client's model is to know: what would end the process ends the call, others run."""
_ANYTHING: TypeAdapter[object] = TypeAdapter(object)


def result_of(outcome: object, *, structured: bool, of_server: bool = False) -> types.CallToolResult:
    """What the client is told of a call.

    Args:
        outcome: what the node returned for it: a message, or a `Command` with one in its update.
        structured: whether the tool says that it returns an object; its text is the JSON of that.
        of_server: whether it is a tool of another MCP server, whose structured content and `_meta` are passed on.
    """
    message = _message_in(outcome)
    if message is None:
        return failed("The tool has answered with a command for the graph around it, and here is none.")
    if message.status == "error":
        return types.CallToolResult(content=list(_blocks(message.content)), is_error=True)
    content = list(_blocks(message.content))
    if of_server and isinstance(message.artifact, Mapping):
        given = cast("McpArtifact", message.artifact)
        return types.CallToolResult(
            content=content, structured_content=given.get("structured_content"), _meta=given.get("meta")
        )
    return types.CallToolResult(content=content, structured_content=_structured(message, of_text=structured))


def failed(text: str) -> types.CallToolResult:
    """A call that failed, in words for the model."""
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def failed_with(error: BaseException) -> types.CallToolResult:
    """A call whose error nobody has handled: what a model reads of one that a node handles."""
    return failed(TOOL_CALL_ERROR_TEMPLATE.format(error=repr(error)))


def text_of(message: BaseMessage) -> str:
    """The text of a message: what a model says to its user."""
    return str(message.text)


def _message_in(outcome: object) -> ToolMessage | None:
    if isinstance(outcome, ToolMessage):
        return outcome
    update: object = outcome.update if isinstance(outcome, Command) else outcome
    if isinstance(update, Mapping):
        update = next((value for value in update.values() if _message_in(value) is not None), None)
    if isinstance(update, Sequence) and not isinstance(update, str):
        return next((found for one in update if (found := _message_in(one)) is not None), None)
    return update if isinstance(update, ToolMessage) else None


def _structured(message: ToolMessage, *, of_text: bool) -> dict[str, Any] | None:
    """The object that a call returned, beside its text; `None` if it is none."""
    if message.artifact is not None:
        return _as_object(message.artifact)
    if not of_text or not isinstance(message.content, str):
        return None
    try:
        found = json.loads(message.content)
    except ValueError:
        return None  # a middleware has shortened it, or a person has answered in its place
    return found if isinstance(found, dict) else None


def _as_object(artifact: object) -> dict[str, Any] | None:
    """An artifact as a JSON object. Any other is for the program that has the tool, and stays with it."""
    if isinstance(artifact, (str, bytes, int, float)):
        return None
    if isinstance(artifact, dict) and is_data_content_block(cast("dict[str, Any]", artifact)):
        return None  # it says where content is; a client that shows it to its model in place of the text shows nothing
    try:
        found = _ANYTHING.dump_python(artifact, mode="json")
    except (PydanticSerializationError, ValueError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _blocks(content: str | Sequence[str | dict[Any, Any]]) -> Iterator[types.ContentBlock]:
    for block in [content] if isinstance(content, str) else content:
        yield types.TextContent(text=block) if isinstance(block, str) else _block(block)


def _block(block: Mapping[Any, Any]) -> types.ContentBlock:
    """A block of LangChain's as one of MCP's; what MCP has no word for is told as its JSON."""
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return types.TextContent(text=block["text"])
    if kind == "image_url":
        found = block.get("image_url")
        return _of_url(str(found.get("url") if isinstance(found, Mapping) else found), "image/*")
    data = block.get("base64") or (block.get("data") if block.get("source_type") == "base64" else None)
    if isinstance(data, str):
        return _of_bytes(str(kind), data, block.get("mime_type"))
    if isinstance(url := block.get("url"), str):
        return _of_url(url, block.get("mime_type"))
    return types.TextContent(text=json.dumps(block, ensure_ascii=False, default=str))


def _of_bytes(kind: str, data: str, mime_type: str | None) -> types.ContentBlock:
    if kind == "image":
        return types.ImageContent(data=data, mime_type=mime_type or "image/png")
    if kind == "audio":
        return types.AudioContent(data=data, mime_type=mime_type or "audio/wav")
    contents = types.BlobResourceContents(uri="callboard:result", blob=data, mime_type=mime_type)
    return types.EmbeddedResource(resource=contents)


def _of_url(url: str, mime_type: str | None) -> types.ContentBlock:
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        mime_type = head.removeprefix("data:").removesuffix(";base64")
        return _of_bytes(mime_type.partition("/")[0], data, mime_type)
    return types.ResourceLink(name=url.rpartition("/")[2] or url, uri=url, mime_type=mime_type)
