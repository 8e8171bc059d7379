"""Conversion of tool results to MCP: content for the model, structured content for the program, output schemas."""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, cast, get_origin, get_type_hints, is_typeddict

from langchain_core.messages import BaseMessage, ToolMessage, is_data_content_block
from langchain_core.messages.tool import ToolOutputMixin
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.types import Command
from mcp import types
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from callboard_actors._util._sendable import as_sendable, reason_unsendable
from callboard_actors.mcp import McpArtifact

# Conversion of a call's outcome to an MCP result.

ERRORS_OF_CALLS: Final = (Exception, SystemExit, KeyboardInterrupt)
"""Errors of a call that become an error result for the model.

A tool that raises an exit ends its call, not the server.
"""
_ANYTHING: TypeAdapter[object] = TypeAdapter(object)


def result_of(outcome: object, *, structured: bool, of_server: bool = False) -> types.CallToolResult:
    """Return the outcome of a tool call as an MCP result."""
    message = _message_in(outcome)
    if message is None:
        return error_result("The tool has answered with a command for the graph around it, and here is none.")
    blocks = [message.content] if isinstance(message.content, str) else message.content
    content = [types.TextContent(text=block) if isinstance(block, str) else _block(block) for block in blocks]
    is_error = message.status == "error"
    # The tool belongs to another MCP server: its structured content and `_meta` are passed on.
    if of_server and isinstance(message.artifact, Mapping):
        parts = cast("McpArtifact", message.artifact)
        return types.CallToolResult(
            content=content,
            structured_content=parts.get("structured_content"),
            _meta=parts.get("meta"),
            is_error=is_error,
        )
    if is_error:
        return types.CallToolResult(content=content, is_error=True)
    artifact: object = message.artifact
    value: object = None
    if artifact is None:
        if structured and isinstance(message.content, str):
            with suppress(ValueError):  # a middleware has shortened the text, or a person has answered
                value = json.loads(message.content)
    # Of a content block, a client that prefers structured content would hide the text from its model.
    elif not isinstance(artifact, dict) or not is_data_content_block(cast("dict[str, Any]", artifact)):
        with suppress(PydanticSerializationError, ValueError):  # no JSON form: the client gets the text alone
            value = _ANYTHING.dump_python(artifact, mode="json", by_alias=True)
    structured_content = cast("dict[str, Any]", value) if isinstance(value, dict) else None
    return types.CallToolResult(content=content, structured_content=structured_content)


def sendable(result: types.CallToolResult, name: str) -> types.CallToolResult:
    """Return the result of the tool `name`, or an error result if JSON cannot carry it."""
    reason = reason_unsendable(result.model_dump())
    return result if reason is None else error_result(f"The result of {name!r} cannot be sent: {reason}.")


def error_result(text: str) -> types.CallToolResult:
    """Return an MCP error result with a text for the model."""
    return types.CallToolResult(content=[types.TextContent(text=as_sendable(text))], is_error=True)


def _message_in(outcome: object) -> ToolMessage | None:
    if isinstance(outcome, ToolMessage):
        return outcome
    update: object = outcome.update if isinstance(outcome, Command) else outcome
    if isinstance(update, Mapping):
        update = next((value for value in update.values() if _message_in(value) is not None), None)
    if isinstance(update, Sequence) and not isinstance(update, str):
        return next((message for item in update if (message := _message_in(item)) is not None), None)
    return update if isinstance(update, ToolMessage) else None


def _block(block: Mapping[Any, Any]) -> types.ContentBlock:
    """Convert a content block of LangChain to one of MCP; a block without a counterpart becomes JSON text."""
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return types.TextContent(text=block["text"])
    if kind == "image_url":
        image = block.get("image_url")
        return _of_url(str(image.get("url") if isinstance(image, Mapping) else image), "image/*")
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


# Tools with an object as annotated return type: output schema, and JSON results instead of `str` of the object.

_FUNCTIONS: Final = ("func", "coroutine")
"""Attributes of a LangChain tool that hold its sync and its async function."""


@dataclass(frozen=True, slots=True)
class ResultType:
    """Annotated return type of a tool's function, with its validator and its JSON schema."""

    adapter: TypeAdapter[Any]
    schema: dict[str, Any]

    def as_json(self, name: str, result: object) -> object:
        """Validate a result of the tool `name`, and return it converted to JSON types."""
        try:
            # By alias, as in the schema.
            return self.adapter.dump_python(self.adapter.validate_python(result), mode="json", by_alias=True)
        except ValidationError as error:
            # Not a ValidationError: the node would take it for wrong arguments, and ask the model to repair them.
            raise TypeError(f"the tool {name!r} did not return what its annotation says: {error}") from None


def result_type(tool: BaseTool) -> ResultType | None:
    """Return the annotated return type of a tool's function; `None` if its results are not JSON objects."""
    function = next(
        (candidate for attribute in _FUNCTIONS if (candidate := getattr(tool, attribute, None)) is not None), None
    )
    if function is None or tool.response_format != "content":
        return None
    try:
        annotation = get_type_hints(function).get("return")
        kind = get_origin(annotation) or annotation
        # A message or command of LangChain is a container of the tool's result.
        is_container = isinstance(kind, type) and issubclass(kind, ToolOutputMixin | BaseMessage)
        if annotation is None or annotation is Any or is_container:
            return None
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        except PydanticUserError:
            if not is_typeddict(annotation):
                raise
            # pydantic rejects `typing.TypedDict` before Python 3.12: accept any fields.
            adapter = TypeAdapter(dict[str, Any])
        schema = adapter.json_schema(mode="serialization")
    except (PydanticSchemaGenerationError, PydanticUserError, NameError, TypeError):
        return None  # a type without a schema, such as a Command
    return ResultType(adapter, schema) if schema.get("type") == "object" else None


def with_json_results(tool: BaseTool) -> BaseTool:
    """Return a copy of a tool with results in JSON, or the tool itself if its results are not JSON objects."""
    type_of_result = result_type(tool)
    if type_of_result is None or not isinstance(tool, StructuredTool):
        return tool
    functions: Mapping[str, object] = {
        attribute: _with_json_result(tool.name, function, type_of_result)
        for attribute in _FUNCTIONS
        if (function := getattr(tool, attribute)) is not None
    }
    return tool.model_copy(update=functions)


def _with_json_result(name: str, function: Callable[..., Any], type_of_result: ResultType) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(function):

        @wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            return type_of_result.as_json(name, function(*args, **kwargs))

        return call

    @wraps(function)
    async def acall(*args: object, **kwargs: object) -> object:
        return type_of_result.as_json(name, await cast("Awaitable[object]", function(*args, **kwargs)))

    return acall
