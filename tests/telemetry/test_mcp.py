"""Trace propagation to an MCP server: `carrier()` in the `_meta` of a request, and `continued()` in the server."""

from typing import Any, cast

import pytest
from mcp import Client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    RequestParamsMeta,
    TextContent,
    Tool,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callboard import ToolNode
from callboard.telemetry import Tracing, carrier, continued
from callboard.testing import tool_call

Context = ServerRequestContext[Any, Any]


def warehouse(provider: TracerProvider) -> Server[Any]:
    """Return a server that traces its tool and continues the trace of the request."""

    async def list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="stock", input_schema={"type": "object"})])

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        with continued(context.meta), provider.get_tracer("server").start_as_current_span(params.name):
            return CallToolResult(content=[TextContent(text="12")])

    server: Server[Any] = Server("warehouse", on_list_tools=list_tools, on_call_tool=call_tool)
    # Without this, the SDK's own middleware would continue the trace for any handler.
    server.middleware.clear()
    return server


@pytest.mark.real_clock
@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_a_server_goes_on_with_the_trace_of_the_call(era: str) -> None:
    """The server's span is below the attempt that called it, for both generations of the MCP SDK."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async with Client(warehouse(provider), mode=era) as client:

        async def in_stock(article: str) -> str:
            """Ask the warehouse."""
            result = await client.call_tool("stock", {"article": article}, meta=cast("RequestParamsMeta", carrier()))
            return str(getattr(result.content[0], "text", ""))

        with Tracing(provider).on():
            answer = await ToolNode([in_stock]).ainvoke([tool_call("in_stock", "1", article="tea")])

    spans = {span.name: span for span in exporter.get_finished_spans()}
    asked, served = spans["attempt in_stock"].context, spans["stock"].parent

    assert answer["messages"][0].content == "12"
    assert served is not None and served.is_remote
    assert (served.trace_id, served.span_id) == (asked.trace_id, asked.span_id)
