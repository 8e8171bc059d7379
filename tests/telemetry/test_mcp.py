"""A trace goes on in an MCP server: `carrier()` in the `_meta` of a request, `continued()` at the other end."""

from typing import Any

import pytest
from mcp.server.lowlevel import Server
from mcp.shared.memory import create_connected_server_and_client_session
from mcp.types import TextContent, Tool
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callboard import ToolNode
from callboard.telemetry import Tracing, carrier, continued
from callboard.testing import tool_call


def warehouse(provider: TracerProvider) -> Server[Any]:
    """A server that traces its tool, and continues what the request is part of."""
    server: Server[Any] = Server("warehouse")

    @server.list_tools()
    async def list_tools() -> list[Tool]:
        return [Tool(name="stock", inputSchema={"type": "object"})]

    @server.call_tool()
    async def call_tool(name: str, arguments: dict[str, Any]) -> list[TextContent]:
        meta = server.request_context.meta
        with continued(meta.model_extra if meta else None), provider.get_tracer("server").start_as_current_span(name):
            return [TextContent(type="text", text="12")]

    return server


@pytest.mark.real_clock
async def test_a_server_goes_on_with_the_trace_of_the_call() -> None:
    """Its span is below the attempt that asked, though it runs in a task of its own."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async with create_connected_server_and_client_session(warehouse(provider)) as session:

        async def in_stock(article: str) -> str:
            """Ask the warehouse."""
            result = await session.call_tool("stock", {"article": article}, meta={**carrier()})
            return str(getattr(result.content[0], "text", ""))

        with Tracing(provider).on():
            answer = await ToolNode([in_stock]).ainvoke([tool_call("in_stock", "1", article="tea")])

    spans = {span.name: span for span in exporter.get_finished_spans()}
    asked, served = spans["attempt in_stock"].context, spans["stock"].parent

    assert answer["messages"][0].content == "12"
    assert served is not None and served.is_remote
    assert (served.trace_id, served.span_id) == (asked.trace_id, asked.span_id)
