"""From a span to one that it goes on with, and from one process to another: spans as text."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, Span, SpanContext, TraceFlags

CALL = context.create_key("callboard-call")
RUN = context.create_key("callboard-run")
"""Under these the current context has the span of the call, and of the run, that it is in."""


def mark() -> str | None:
    """The spans of the call and of the run that is going on here, as text: what resumes them links to them."""
    found = [context.get_value(key) for key in (CALL, RUN)]
    if not any(isinstance(span, Span) for span in found):
        return None
    return " ".join(_as_text(span) for span in found)


def link_to_call(left: str | None) -> list[Link]:
    """Return a link to the call that left a mark, or to its run.

    A call that is stored as begun together with its reply has no span yet.
    """
    return _links(left, 0) or _links(left, 1)


def link_to_run(left: str | None) -> list[Link]:
    """A link to the run that left a mark."""
    return _links(left, 1)


def _as_text(span: object) -> str:
    if not isinstance(span, Span):
        return "-"
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def _links(left: str | None, position: int) -> list[Link]:
    """Links from a mark, which may come from a database and be anything."""
    parts = (left or "").split(" ")
    if len(parts) != 2:
        return []
    try:
        _, trace_id, span_id, flags = parts[position].split("-")
        found = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    except ValueError:
        return []
    return [Link(found)] if found.is_valid else []


def carrier() -> dict[str, str]:
    """The current span and baggage as text, by the propagators that are set: W3C `traceparent` by default.

    For whatever crosses a border that a context does not: the environment of a worker process, the `_meta` of
    a request to an MCP server, the headers of a message. `continued` is the other end.
    """
    found: dict[str, str] = {}
    propagate.inject(found)
    return found


@contextmanager
def continued(carried: Mapping[str, object] | None) -> Generator[None]:
    """Let what is done inside the block be part of the trace that `carrier` was called in.

    Args:
        carried: what came over the border, other entries included; `None` or anything unreadable is no trace.
    """
    text = {key: value for key, value in (carried or {}).items() if isinstance(value, str)}
    token = context.attach(propagate.extract(text))
    try:
        yield
    finally:
        context.detach(token)


def ids() -> dict[str, str]:
    """The ids of the current span, for log lines."""
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return {}
    return {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}
