"""In-memory spans, with helpers for tests."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import anyio
import pytest
from langchain_core.language_models.chat_models import LangSmithParams
from langchain_core.messages import AIMessage
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id, format_trace_id

from callboard.telemetry import Tracing
from callboard.testing import ScriptedModel

WAIT = 20


class Traces:
    """Tracer provider that keeps its spans, with a `Tracing` that gets the given options."""

    def __init__(self, **options: Any) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(self.provider, **options)
        self.tracer = self.provider.get_tracer("test")

    def on(self) -> AbstractContextManager[None]:
        return self.tracing.on()

    @property
    def spans(self) -> list[ReadableSpan]:
        """Return the ended spans in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def all(self, name: str) -> list[ReadableSpan]:
        """Return the spans whose names have this prefix, in the order of their starts."""
        return sorted((span for span in self.spans if span.name.startswith(name)), key=lambda span: span.start_time)

    def one(self, name: str) -> ReadableSpan:
        [span] = self.all(name)
        return span

    def tool(self) -> ReadableSpan:
        return self.one("execute_tool")


@contextmanager
def record_traces(**options: Any) -> Iterator[Traces]:
    traces = Traces(**options)
    with traces.on():
        yield traces


async def turns(agent: Any, *inputs: Any, config: Any = None, fails: Any = (), **options: Any) -> Traces:
    """Run the turns of an agent, or the batches of a node, and return their spans. The last one may fail."""
    with record_traces(**options) as traces, anyio.fail_after(WAIT), pytest.raises(fails) if fails else nullcontext():
        for turn in inputs:
            await agent.ainvoke(turn, config)
    return traces


class PaidModel(ScriptedModel):
    """Scripted model with the metadata of a provider's model."""

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return LangSmithParams(
            ls_provider="openai", ls_model_name="gpt-x", ls_model_type="chat", ls_temperature=0.5, ls_max_tokens=64
        )


class Instrumented(PaidModel):
    """Model that traces itself, as instrumentation libraries do."""

    tracer: Any = None
    at_start: dict[str, str] = {}
    at_end: dict[str, str] = {}

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        with self.tracer.start_as_current_span("own", attributes=self.at_start) as span:
            reply = await super()._agenerate(*args, **kwargs)
            span.set_attributes(self.at_end)
        return reply


def full_reply(text: str) -> AIMessage:
    """Return a reply with all metadata of a provider."""
    usage: Any = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10, "input_token_details": {"cache_read": 2}}
    metadata = {"model_name": "gpt-x-2026", "finish_reason": "stop", "id": "chatcmpl-1"}
    return AIMessage(text, usage_metadata=usage, response_metadata=metadata)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def facts(span: ReadableSpan, event: str) -> dict[str, Any]:
    """Return the attributes of the only event of that name."""
    [match] = [event_ for event_ in span.events if event_.name == event]
    return dict(match.attributes or {})


def link_ids(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return format_trace_id(span.context.trace_id), format_span_id(span.context.span_id)


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == span_id(parent)


def texts_in(spans: Iterable[ReadableSpan]) -> str:
    """Return all text of spans that leaves the process."""
    return "\n".join(
        repr((span.name, attributes(span), span.status.description, span.links, span.resource.attributes))
        + repr([(event.name, dict(event.attributes or {})) for event in span.events])
        for span in spans
    )
