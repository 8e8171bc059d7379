"""A process with its own SDK, which callboard finds by itself. It prints the names of the spans.

python -m tests.telemetry._own_sdk CASE
"""

import json
import sys
from contextlib import ExitStack

import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callboard import ToolNode, create_react_agent
from callboard.telemetry import Tracing, setup
from callboard.testing import Recorder, calls

from ._traces import Instrumented, Traces, full_reply

CASE = sys.argv[1]


def make_provider() -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def early() -> None:
    """Create a tracing before a provider exists, and a model that traces itself."""
    tracing = Tracing()
    provider, exporter = make_provider()
    trace.set_tracer_provider(provider)
    model = Instrumented(
        [full_reply("done")], tracer=provider.get_tracer("own"), at_start={"gen_ai.operation.name": "chat"}
    )
    agent = create_react_agent(model, [], name="clerk")
    with tracing.on():
        anyio.run(agent.ainvoke, {"messages": [("user", "go")]})
    print(json.dumps([[span.name for span in exporter.get_finished_spans()], []]))


def main() -> None:
    provider, exporter = make_provider()
    other_traces = Traces()
    node = ToolNode([Recorder().tool("search")])
    with ExitStack() as stack:
        if CASE == "late":
            anyio.run(node.ainvoke, [calls("search")])
        if CASE != "none":
            trace.set_tracer_provider(provider)
        if CASE == "explicit":
            stack.enter_context(Tracing().on())
        if CASE == "elsewhere":
            stack.enter_context(other_traces.on())
        if CASE == "setup":
            stack.enter_context(setup(metrics=False))
        if CASE == "setup and explicit":
            stack.enter_context(setup(metrics=False))
            stack.enter_context(Tracing().on())
        anyio.run(node.ainvoke, [calls("search")])
    anyio.run(node.ainvoke, [calls("search")])
    span_names = [[span.name for span in spans] for spans in (exporter.get_finished_spans(), other_traces.spans)]
    print(json.dumps(span_names))


if __name__ == "__main__":
    early() if CASE == "early" else main()
