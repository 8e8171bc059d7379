"""Fragments of the pages in `docs/how-to` that send spans, metrics and records of runs."""

import json
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import opentelemetry.trace
import zstandard
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import callboard.telemetry
from callboard import ToolNode, create_react_agent, tool_call
from callboard.middleware import CircuitBreaker
from callboard.testing import ScriptedModel, calls
from tests.doc_fragments import _bodies
from tests.doc_fragments._servers import Receiver, receiver
from tests.doc_fragments._surroundings import AsyncSteps, Fragments, Steps, World

FRAGMENTS = Fragments()
fragment = FRAGMENTS.of
TRACES = "docs/how-to/trace-calls.md"
QUESTION = {"messages": [("user", "What is tea?")]}


def searching() -> Any:
    return create_react_agent(ScriptedModel([calls(("search", {"query": "tea"})), "A drink."]), [_bodies.search])


@contextmanager
def collector(world: World) -> Iterator[tuple[Receiver, list[Any]]]:
    """Run a receiver in place of any endpoint of `setup`; yield it with the handles that `setup` returned.

    The provider is not made the global one, which would stay for the tests after this one.
    """
    setup, handles = callboard.telemetry.setup, []
    with receiver() as server:

        def to_loopback(*, endpoint: str, **options: Any) -> Any:
            handles.append(setup(endpoint=server.url + urlsplit(endpoint).path, **options))
            return handles[-1]

        world.patch.setattr(callboard.telemetry, "setup", to_loopback)
        world.patch.setattr(opentelemetry.trace, "set_tracer_provider", lambda provider: None)
        yield server, handles


def spans(server: Receiver) -> dict[str, Any]:
    """Return the attributes of each span by its name."""
    requests = [ExportTraceServiceRequest.FromString(one.body) for one in server.received]
    all_spans = [
        span for one in requests for part in one.resource_spans for scope in part.scope_spans for span in scope.spans
    ]
    return {span.name: {one.key: one.value.string_value for one in span.attributes} for span in all_spans}


@fragment(
    TRACES,
    "http://localhost:6006",
    faked="Phoenix is a receiver of OTLP; tests/telemetry/test_phoenix.py has a real one",
)
def traces_to_phoenix(world: World) -> Steps:
    with collector(world) as (server, _):
        yield {"agent": searching(), "question": QUESTION}
        assert {request.path for request in server.received} == {"/v1/traces"}
        assert spans(server)["execute_tool search"]["gen_ai.tool.call.arguments"] == '{"query": "tea"}'


@fragment(TRACES, "cloud.langfuse.com", faked="Langfuse is a receiver of OTLP")
def traces_to_langfuse(world: World) -> Steps:
    world.patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "")
    with collector(world) as (server, handles):
        yield {"public_key": "pk-1", "secret_key": "sk-1"}
        searching().invoke(QUESTION)
        handles[0].shutdown()
        assert {request.path for request in server.received} == {"/api/public/otel/v1/traces"}
        keys = b64encode(b"pk-1:sk-1").decode()
        assert {request.headers["authorization"] for request in server.received} == {f"Basic {keys}"}
        assert "execute_tool search" in spans(server)


@fragment(TRACES, "import logfire", faked="logfire is not installed: a module of its name sets a provider, as it does")
def traces_by_logfire(world: World) -> Steps:
    (world.folder / "logfire.py").write_text(LOGFIRE)
    world.patch.syspath_prepend(world.folder)
    world.patch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", None)
    names = yield {}
    searching().invoke(QUESTION)
    assert "execute_tool search" in [span.name for span in names["logfire"].exporter.get_finished_spans()]
    del sys.modules["logfire"]


LOGFIRE = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()


def configure():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace._TRACER_PROVIDER = provider
"""


@fragment(TRACES, "meta=carrier()", faked="the SDK's client does not add the context itself, as other clients")
async def client_with_traces(world: World) -> AsyncSteps:
    server = MCPServer[Any]("warehouse")

    @server.tool()
    async def stock(article: str, ctx: Context[Any, Any]) -> str:
        return str((ctx.request_context.meta or {}).get("traceparent"))

    world.patch.setattr("mcp.shared.jsonrpc_dispatcher.inject_trace_context", lambda meta: None)
    async with Client(server) as client:
        names = yield {"client": client}
        with TracerProvider().get_tracer("test").start_as_current_span("order") as span:
            traceparent = await names["stock"]("tea")
    assert f"{span.get_span_context().trace_id:032x}" in traceparent


@fragment(TRACES, "continue_trace(ctx", faked="the SDK's server does not continue the trace itself, as other servers")
async def server_with_traces(world: World) -> AsyncSteps:
    trace_ids: list[int] = []

    async def look_up(article: str) -> str:
        trace_ids.append(opentelemetry.trace.get_current_span().get_span_context().trace_id)
        return f"7 of {article}"

    world.patch.setattr("mcp.server._otel.extract_trace_context", lambda meta: None)
    server = MCPServer[Any]("warehouse")
    yield {"server": server, "look_up": look_up}
    meta: Any = {"traceparent": f"00-{'7' * 32}-{'1' * 16}-01"}
    async with Client(server) as client:
        result = await client.call_tool("stock", {"article": "tea"}, meta=meta)
    assert result.content[0].text == "7 of tea"
    assert trace_ids == [int("7" * 32, 16)]


@fragment("docs/how-to/prometheus-and-grafana.md", "observe(circuits)", after_page=True)
async def circuits(world: World) -> AsyncSteps:
    """The second failure opens the circuit of the tool."""

    async def pay() -> str:
        """Pay."""
        raise ConnectionError("down")

    reader = InMemoryMetricReader()
    world.patch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", MeterProvider([reader]))
    breaker = CircuitBreaker(minimum=2, open_for=600, on=ConnectionError)
    node = ToolNode([pay], middleware=[breaker], handle_tool_errors=True)
    agent = create_react_agent(ScriptedModel([calls("pay", "pay"), "Done."]), node)
    yield {"agent": agent, "turn_input": QUESTION, "config": {}}
    [resource] = json.loads(reader.get_metrics_data().to_json())["resource_metrics"]
    points = {
        metric["name"]: metric["data"]["data_points"]
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
    }
    [point] = points["app.circuits.open"]
    assert (point["value"], point["attributes"]) == (1, {"gen_ai.tool.name": "pay"})


@fragment("docs/how-to/secrets.md", "LangChainTracer", after_page=True, faked="LangSmith is a receiver on loopback")
def redaction_for_langsmith(world: World) -> Steps:
    from langsmith.utils import get_env_var

    with receiver() as server:
        world.patch.setenv("LANGSMITH_ENDPOINT", server.url)
        world.patch.setenv("LANGSMITH_API_KEY", "no key")
        get_env_var.cache_clear()
        try:
            names = yield {}
            ToolNode([_bodies.search]).invoke(
                [tool_call("search", "1", query="card 5555 5555 5555 4444")], names["config"]
            )
            names["client"].flush()
        finally:
            get_env_var.cache_clear()
    body = b"".join(plain(request) for request in server.received)
    assert b"all about card" in body
    assert b"5555" not in body


def plain(request: Any) -> bytes:
    if request.headers.get("Content-Encoding") != "zstd":
        return bytes(request.body)
    return zstandard.ZstdDecompressor().decompressobj().decompress(request.body)
