"""One call of a tool as requests over a session: the first, and those with what the server has asked for."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from mcp import Client, MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import HEADER_MISMATCH, CallToolResult, InputRequiredResult, InputResponses
from pydantic import ValidationError

from callboard_actors.mcp._content import McpToolError


class ToolRequests:
    """What is sent for one call.

    Args:
        client: connected.
        tool: its name.
        arguments: for it.
        relist: lists the tools anew. What a request has to say in its headers is part of its tool's schema.
        on_progress: told how far the server is.
        meta: `_meta` of each request.
    """

    def __init__(
        self,
        client: Client,
        tool: str,
        arguments: dict[str, Any],
        *,
        relist: Callable[[], Awaitable[object]],
        on_progress: ProgressFnT | None = None,
        meta: Any = None,
    ) -> None:
        self._tool = tool
        self._relist = relist
        self._send = partial(
            client.session.call_tool,
            tool,
            arguments,
            progress_callback=on_progress,
            meta=meta,
            allow_input_required=True,
        )

    async def __call__(
        self, responses: InputResponses | None, state: str | None, /
    ) -> CallToolResult | InputRequiredResult:
        """Send a request, with what the server has asked for in the one before.

        Raises:
            MCPError: the server refuses it, or cannot be reached.
            McpToolError: it answers with what is no result.
        """
        send = partial(self._send, input_responses=responses, request_state=state)
        try:
            try:
                return await send()
            except MCPError as error:
                if error.code != HEADER_MISMATCH:
                    raise
            await self._relist()
            return await send()
        except (ValidationError, RuntimeError) as error:
            raise McpToolError(f"The server's answer is no result of the tool {self._tool!r}: {error}") from error
