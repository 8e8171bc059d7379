"""Spans in memory, and what tests ask of them."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

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
    """A tracer provider that keeps its spans, and a `Tracing` for it; the options are the latter's."""

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
        """Those that have ended, in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def all(self, name: str) -> list[ReadableSpan]:
        """Those whose names begin like this, by the time they started."""
        return sorted((span for span in self.spans if span.name.startswith(name)), key=lambda span: span.start_time)

    def one(self, name: str) -> ReadableSpan:
        [span] = self.all(name)
        return span

    def tool(self) -> ReadableSpan:
        """The only call's."""
        return self.one("execute_tool")


@contextmanager
def traced(**options: Any) -> Iterator[Traces]:
    """What is started inside is traced."""
    traces = Traces(**options)
    with traces.on():
        yield traces


class PaidModel(ScriptedModel):
    """A scripted model that says of itself what a provider's says."""

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return LangSmithParams(
            ls_provider="openai", ls_model_name="gpt-x", ls_model_type="chat", ls_temperature=0.5, ls_max_tokens=64
        )


class Instrumented(PaidModel):
    """A model that traces itself, as instrumentations do."""

    tracer: Any = None
    at_start: dict[str, str] = {}
    at_end: dict[str, str] = {}

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        with self.tracer.start_as_current_span("own", attributes=self.at_start) as span:
            reply = await super()._agenerate(*args, **kwargs)
            span.set_attributes(self.at_end)
        return reply


def said(text: str) -> AIMessage:
    """A reply with all that a provider tells of it."""
    return AIMessage(
        text,
        usage_metadata={
            "input_tokens": 7,
            "output_tokens": 3,
            "total_tokens": 10,
            "input_token_details": {"cache_read": 2},
        },
        response_metadata={"model_name": "gpt-x-2026", "finish_reason": "stop", "id": "chatcmpl-1"},
    )


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def facts(span: ReadableSpan, event: str) -> dict[str, Any]:
    """What the only event of that name says."""
    [found] = [one for one in span.events if one.name == event]
    return dict(found.attributes or {})


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def ids(span: ReadableSpan) -> tuple[str, str]:
    """Of its trace and of itself, as text."""
    assert span.context is not None
    return format_trace_id(span.context.trace_id), format_span_id(span.context.span_id)


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == span_id(parent)


def texts_in(spans: Iterable[ReadableSpan]) -> str:
    """All that leaves the process with spans."""
    return "\n".join(
        repr((span.name, attributes(span), span.status.description, span.links, span.resource.attributes))
        + repr([(event.name, dict(event.attributes or {})) for event in span.events])
        for span in spans
    )
