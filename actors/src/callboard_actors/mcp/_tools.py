"""The tools of a server as LangChain's."""

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool
from mcp_types import CallToolResult, Tool

from callboard_actors.mcp._content import content_and_artifact, content_of_error, metadata_of

Call = Callable[[str, dict[str, Any]], Awaitable[tuple[CallToolResult, str]]]
"""Takes the name of a tool and its arguments; returns its result, and what the model is to be told besides."""


class ServersTool(StructuredTool):
    """A tool with any names of arguments; LangChain has meanings of its own for `config`, `run_manager` and `self`."""

    async def _arun(self, /, **arguments: Any) -> Any:  # type: ignore[override]
        assert self.coroutine is not None
        return await self.coroutine(**arguments)


def as_langchain_tool(tool: Tool, *, prefix: str, call: Call) -> BaseTool:
    """A tool whose calls a server answers.

    Args:
        tool: as the server describes it.
        prefix: of its name, as models see it.
        call: asks the server.
    """
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
    """As models are told of it; LangChain reads its properties, which a tool without arguments may leave out."""
    return {"properties": {}, **tool.input_schema}
