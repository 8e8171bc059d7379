"""Listing of tools for MCP clients: the schema for models, without injected arguments."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool, InjectedToolCallId
from langchain_core.utils.function_calling import convert_to_openai_tool
from mcp import types
from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo

from callboard import ToolNode, ToolRuntime

_HINTS: Final = {
    "readOnlyHint": "read_only_hint",
    "destructiveHint": "destructive_hint",
    "idempotentHint": "idempotent_hint",
    "openWorldHint": "open_world_hint",
}
"""Annotations of the protocol that a tool may have in its metadata, with the field names of the SDK."""


def listed(tool: BaseTool, output_schema: dict[str, Any] | None) -> types.Tool:
    """Return the listing of a tool; `output_schema` only for tools that always return structured content."""
    # `title` and the hints of the protocol (`readOnlyHint`, ...) come from the tool's `metadata`.
    function = convert_to_openai_tool(tool)["function"]
    metadata = tool.metadata or {}
    hints = {field: metadata[word] for word, field in _HINTS.items() if isinstance(metadata.get(word), bool)}
    title = metadata.get("title")
    return types.Tool(
        name=tool.name,
        title=title if isinstance(title, str) else None,
        description=function.get("description") or None,
        input_schema={"type": "object", "properties": {}, **function.get("parameters", {})},
        output_schema=output_schema,
        annotations=types.ToolAnnotations(**hints) if hints else None,
    )


def check_servable(node: ToolNode) -> None:
    """Raise ValueError for the first tool with an injected argument that only a graph or an agent can provide."""
    for name, tool in node.tools_by_name.items():
        for argument, what in _missing(node, tool):
            raise ValueError(
                f"the tool {name!r} cannot be served by itself: its argument {argument!r} is {what}, and no graph is "
                "around it. Serve the agent that has it, or give the argument a default"
            )


def _missing(node: ToolNode, tool: BaseTool) -> Iterator[tuple[str, str]]:
    """Yield the injected arguments that a call without a graph would lack, each with a description."""
    probe: ToolCall = {"name": tool.name, "args": {}, "id": "probe", "type": "tool_call"}
    try:
        injected: dict[str, Any] = node.inject_tool_args(probe, {})["args"]
    except (KeyError, AttributeError) as error:
        yield str(error.args[0]), "taken from the state of a graph"
        return
    except ValueError:
        yield "store", "the store of a graph"
        return
    yield from (
        (name, "the state of a graph") for name, value in injected.items() if not isinstance(value, ToolRuntime)
    )
    written = _fields(tool.tool_call_schema)
    for name, field in _fields(tool.get_input_schema()).items():
        if name not in written and name not in injected and field.is_required() and not _is_call_id(field):
            yield name, "injected"


def _fields(schema: object) -> Mapping[str, FieldInfo]:
    """Return the fields of a pydantic model; empty for other schemas, which have no injected arguments."""
    if not isinstance(schema, type) or not issubclass(schema, BaseModel) or issubclass(schema, RootModel):
        return {}
    return schema.model_fields


def _is_call_id(field: FieldInfo) -> bool:
    return any(one is InjectedToolCallId or isinstance(one, InjectedToolCallId) for one in field.metadata)
