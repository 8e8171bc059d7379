"""Requests of one tool call: the first one, and further ones with the values that the server asked for."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from mcp import Client, MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import HEADER_MISMATCH, CallToolResult, InputRequiredResult, InputResponses
from pydantic import ValidationError

from callboard_actors.mcp._content import McpToolError


class ToolRequests:
    """Sender of the requests of one call.

    Args:
        client: connected client of the SDK.
        tool: name of the tool.
        arguments: arguments of the call.
        relist: lists the tools again; their schemas define headers of the requests.
        on_progress: receives the server's progress.
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
        """Send a request, with the values that the server asked for in the last response.

        Raises:
            MCPError: if the server refuses it, or cannot be reached.
            McpToolError: if the response is no valid result.
        """
        send = partial(self._send, input_responses=responses, request_state=state)
        try:
            try:
                return await send()
            except MCPError as error:
                if error.code != HEADER_MISMATCH:
                    raise
            # The tool's schema has changed since it was listed. The server has refused the request because of its
            # headers, so sending it again cannot run the tool twice.
            await self._relist()
            return await send()
        except (ValidationError, RuntimeError) as error:
            raise McpToolError(f"The server's answer is no result of the tool {self._tool!r}: {error}") from error
