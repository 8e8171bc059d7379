"""Conversion of a server's tools to LangChain's."""

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool
from mcp_types import CallToolResult, Tool

from callboard_actors.mcp._content import content_and_artifact, content_of_error, metadata_of

Call = Callable[[str, dict[str, Any]], Awaitable[tuple[CallToolResult, str]]]
"""Function of a tool's name and arguments; returns the result, and a notice for the model or an empty text."""


class ServersTool(StructuredTool):
    """Tool that accepts any argument names; LangChain reserves `config`, `run_manager` and `self`."""

    async def _arun(self, /, **arguments: Any) -> Any:  # type: ignore[override]
        assert self.coroutine is not None
        return await self.coroutine(**arguments)


def as_langchain_tool(tool: Tool, *, prefix: str, call: Call) -> BaseTool:
    """Return a LangChain tool; `call` sends its calls to the server."""
    name = prefix + tool.name

    async def ask(**arguments: Any) -> tuple[Any, Any]:
        result, notice = await call(tool.name, arguments)
        content, artifact = content_and_artifact(result)
        if notice:
            content = [*content, {"type": "text", "text": f"({notice})"}]
        return content, artifact

    return ServersTool(
        name=name,
        description=tool.description or tool.title or tool.name,
        args_schema=_schema(tool),
        coroutine=ask,
        response_format="content_and_artifact",
        metadata=metadata_of(tool),
        handle_tool_error=content_of_error,
    )


def _schema(tool: Tool) -> dict[str, Any]:
    """Return the schema for models. LangChain reads `properties`, which the schema of a tool may omit."""
    return {"properties": {}, **tool.input_schema}
