"""What a server's tool gives, as a model and a program read it."""

from typing import Any

from langchain_core.tools import ToolException
from mcp_types import CallToolResult, TextContent, Tool


class McpToolError(ToolException):
    """A server's tool failed; the text is for the model."""


def content_and_artifact(result: CallToolResult) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """What a model reads of a result, and what is there for programs, if anything.

    Raises:
        McpToolError: the tool says that it failed.
    """
    content = [{"type": "text", "text": part.text} for part in result.content if isinstance(part, TextContent)]
    if result.is_error:
        raise McpToolError("\n".join(part["text"] for part in content) or "The tool failed.")
    structured = result.structured_content
    return content, None if structured is None else {"structured_content": structured}


def content_of_error(error: ToolException) -> list[dict[str, Any]]:
    """What a model reads of a failed tool: for `handle_tool_error` of a LangChain tool."""
    return [{"type": "text", "text": str(error)}]


def metadata_of(tool: Tool) -> dict[str, Any] | None:
    """What a server says of a tool beside its schema."""
    return None if tool.annotations is None else tool.annotations.model_dump(by_alias=True)
