"""Released versions of tracers, and the tree of runs that each tracer recorded."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from langchain_core.tracers import BaseTracer
from langchain_core.tracers.schemas import Run
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@dataclass
class Node:
    """One run, as a tracer recorded it."""

    name: str
    kind: str
    status: str
    facts: dict[str, Any]
    below: list["Node"] = field(default_factory=list)


@dataclass
class Seen:
    """Callbacks to pass to a run, and the trees that the tracer records."""

    handlers: list[Any]
    roots: Callable[[], list[Node]]


class Persisted(BaseTracer):
    """langchain-core's own tracer, as the control: it keeps the runs that LangSmith would receive."""

    def __init__(self, runs: list[Run]) -> None:
        super().__init__()
        self.runs = runs

    def _persist_run(self, run: Run) -> None:
        self.runs.append(run)


@contextmanager
def langchain_core(provider: TracerProvider, spans: InMemorySpanExporter) -> Iterator[Seen]:
    runs: list[Run] = []

    def roots() -> list[Node]:
        trees = [_of_run(run) for run in runs]
        runs.clear()
        return trees

    yield Seen([Persisted(runs)], roots)


def _of_run(run: Run) -> Node:
    facts = {
        "inputs": run.inputs,
        "outputs": run.outputs,
        "error": run.error and run.error.splitlines()[0],
        "tags": sorted(run.tags or ()),
        "extra": run.extra,
        "events": [event["name"] for event in run.events],
        "serialized": run.serialized,
    }
    status = "error" if run.error else "ok"
    return Node(run.name, run.run_type, status, facts, [_of_run(child) for child in run.child_runs])


@contextmanager
def openinference(provider: TracerProvider, spans: InMemorySpanExporter) -> Iterator[Seen]:
    from openinference.instrumentation.langchain import LangChainInstrumentor

    LangChainInstrumentor().instrument(tracer_provider=provider)
    yield Seen([], lambda: trees(spans.get_finished_spans(), "openinference.span.kind"))


@contextmanager
def traceloop(provider: TracerProvider, spans: InMemorySpanExporter) -> Iterator[Seen]:
    from opentelemetry.instrumentation.langchain import LangchainInstrumentor

    LangchainInstrumentor().instrument(tracer_provider=provider)
    yield Seen([], lambda: trees(spans.get_finished_spans(), "gen_ai.operation.name"))


@contextmanager
def langfuse(provider: TracerProvider, spans: InMemorySpanExporter) -> Iterator[Seen]:
    from langfuse import Langfuse
    from langfuse.langchain import CallbackHandler

    client = Langfuse(
        public_key="pk-test",
        secret_key="sk-test",
        base_url="http://127.0.0.1:9",
        tracer_provider=provider,
        span_exporter=InMemorySpanExporter(),
    )
    yield Seen([CallbackHandler()], lambda: trees(spans.get_finished_spans(), "langfuse.observation.type"))
    client.shutdown()


def trees(spans: Sequence[ReadableSpan], kind: str) -> list[Node]:
    """Build trees from spans. Spans without a parent are roots; a parent that never ended is an error."""
    nodes = {span.context.span_id: _of_span(span, kind) for span in spans}
    roots: list[Node] = []
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        if span.parent is None:
            roots.append(nodes[span.context.span_id])
        elif span.parent.span_id not in nodes:
            roots.append(Node("<a span that never ended>", "", "", {}, [nodes[span.context.span_id]]))
        else:
            nodes[span.parent.span_id].below.append(nodes[span.context.span_id])
    return roots


def _of_span(span: ReadableSpan, kind: str) -> Node:
    facts = dict(span.attributes or {})
    facts.pop("thread.id", None)
    facts.pop("thread.name", None)
    facts["events"] = [(event.name, (event.attributes or {}).get("exception.message")) for event in span.events]
    status = f"{span.status.status_code.name} {(span.status.description or '').partition(chr(10))[0]}".strip()
    return Node(span.name, str(facts.get(kind, "")), status, facts)


TRACERS = {
    "langchain-core": langchain_core,
    "openinference": openinference,
    "traceloop": traceloop,
    "langfuse": langfuse,
}
