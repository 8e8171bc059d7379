"""OpenTelemetry span contexts as text: links to spans of interrupted calls, traces across processes, ids for logs."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from callboard._calls._blocks import has_to_be_entered

CALL = context.create_key("callboard-call")
RUN = context.create_key("callboard-run")
"""Keys of OpenTelemetry's context under which the spans of the current call and of the current run are stored."""

_W3C = TraceContextTextMapPropagator()


def mark() -> str | None:
    """Return a text (a mark) that names the spans of the current call and current run; `None` if neither has a span."""
    # If the call or run is interrupted and resumed later, the resumed one links to these spans.
    spans = [context.get_value(key) for key in (CALL, RUN)]
    if not any(isinstance(span, Span) for span in spans):
        return None
    return " ".join(_as_text(span) for span in spans)


def link_to_call(mark: str | None) -> list[Link]:
    """Return a list with at most one link: to the interrupted call's span or, if it has none, to its run's span."""
    # A call may be stored as begun together with the model's reply, before it has a span. Its mark has only the run.
    return _links(mark, 0) or _links(mark, 1)


def link_to_run(mark: str | None) -> list[Link]:
    """Return a list with the link from a resumed run to the interrupted run's span; empty if the mark names no span."""
    return _links(mark, 1)


def _as_text(span: object) -> str:
    if not isinstance(span, Span):
        return "-"
    span_context = span.get_span_context()
    return f"00-{span_context.trace_id:032x}-{span_context.span_id:016x}-{span_context.trace_flags:02x}"


def _links(mark: str | None, position: int) -> list[Link]:
    """Return a list with a link to the call's span (position 0) or run's span (1) in a mark; empty if there is none."""
    # A mark has two values of the header `traceparent`: of the span of the call, and of the span of its run.
    parts = (mark or "").split(" ")
    if len(parts) != 2:
        return []
    trace_context = _W3C.extract({"traceparent": parts[position]}, Context())
    span_context = trace.get_current_span(trace_context).get_span_context()
    return [Link(span_context)] if span_context.is_valid else []


def carrier() -> dict[str, str]:
    """Return the current trace context and baggage as a dict of texts, written by the configured propagators.

    The default propagator writes a W3C `traceparent`. Send the dict where a context variable cannot go: in the
    environment of a worker process, the `_meta` of a request to an MCP server, the headers of a message. The receiver
    passes it to `continue_trace`.
    """
    entries: dict[str, str] = {}
    propagate.inject(entries)
    return entries


@has_to_be_entered("with callboard.telemetry.continue_trace(...):")
@contextmanager
def continue_trace(entries: Mapping[str, object] | None) -> Generator[None]:
    """Continue a trace inside the `with` block: attach the trace context that `carrier` returned in another process.

    Args:
        entries: the received entries; unknown ones are ignored. `None` and unreadable entries mean no trace.
    """
    texts = {key: value for key, value in (entries or {}).items() if isinstance(value, str)}
    token = context.attach(propagate.extract(texts))
    try:
        yield
    finally:
        context.detach(token)


def ids() -> dict[str, str]:
    """Return a dict with the trace id and the span id of the current span, for log lines; empty without a span."""
    span_context = trace.get_current_span().get_span_context()
    if not span_context.is_valid:
        return {}
    return {"trace_id": f"{span_context.trace_id:032x}", "span_id": f"{span_context.span_id:016x}"}
