"""OpenTelemetry span contexts as text: links to spans of interrupted calls, traces across processes, ids for logs."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

CALL = context.create_key("callboard-call")
RUN = context.create_key("callboard-run")
"""Keys of OpenTelemetry's context under which the spans of the current call and of the current run are stored."""

_W3C = TraceContextTextMapPropagator()


def mark() -> str | None:
    """Return a text (a mark) that names the spans of the current call and current run; `None` if neither has a span."""
    # If the call or run is interrupted and resumed later, the resumed one links to these spans.
    found = [context.get_value(key) for key in (CALL, RUN)]
    if not any(isinstance(span, Span) for span in found):
        return None
    return " ".join(_as_text(span) for span in found)


def link_to_call(left: str | None) -> list[Link]:
    """Return a list with at most one link: to the interrupted call's span or, if it has none, to its run's span."""
    # A call may be stored as begun together with the model's reply, before it has a span. Its mark has only the run.
    return _links(left, 0) or _links(left, 1)


def link_to_run(left: str | None) -> list[Link]:
    """Return a list with the link from a resumed run to the interrupted run's span; empty if `left` names no span."""
    return _links(left, 1)


def _as_text(span: object) -> str:
    if not isinstance(span, Span):
        return "-"
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def _links(left: str | None, position: int) -> list[Link]:
    """Return a list with a link to the call's span (position 0) or run's span (1) in a mark; empty if there is none."""
    parts = (left or "").split(" ")
    if len(parts) != 2:
        return []
    around = _W3C.extract({"traceparent": parts[position]}, Context())
    found = trace.get_current_span(around).get_span_context()
    return [Link(found)] if found.is_valid else []


def carrier() -> dict[str, str]:
    """Return the current trace context and baggage as a dict of texts, written by the configured propagators.

    The default propagator writes a W3C `traceparent`. Send the dict where a context variable cannot go: in the
    environment of a worker process, the `_meta` of a request to an MCP server, the headers of a message. The receiver
    passes it to `continued`.
    """
    found: dict[str, str] = {}
    propagate.inject(found)
    return found


@contextmanager
def continued(carried: Mapping[str, object] | None) -> Generator[None]:
    """Continue a trace inside the `with` block: attach the trace context that `carrier` returned in another process.

    Args:
        carried: the received entries; unknown ones are ignored. `None` and unreadable entries mean no trace.
    """
    text = {key: value for key, value in (carried or {}).items() if isinstance(value, str)}
    token = context.attach(propagate.extract(text))
    try:
        yield
    finally:
        context.detach(token)


def ids() -> dict[str, str]:
    """Return a dict with the trace id and the span id of the current span, for log lines; empty without a span."""
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return {}
    return {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}
