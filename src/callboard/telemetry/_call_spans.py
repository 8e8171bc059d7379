"""Spans of calls: one span for each call, with a child span for each attempt."""

from contextvars import Token
from typing import Any

from langgraph.errors import GraphInterrupt
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

import callboard.telemetry._names as names
from callboard._records._events import CallEvent
from callboard.exceptions import CallCancelledError, CallTimeoutError, CircuitOpenError, DeadlineExceededError
from callboard.telemetry._capture import Capture, result_of, sendable
from callboard.telemetry._links import CALL, link_to_call
from callboard.telemetry._outcome import error_type, has_failed, outcome_of
from callboard.telemetry._tracker import CallTracker, Outcome, TrackedCall

Attributes = dict[str, Any]

_WITHOUT_ARGUMENTS = (CallCancelledError, CallTimeoutError, CircuitOpenError, DeadlineExceededError)
"""Errors whose text never contains arguments. A rejection is not among them: its text contains the key of a limit."""


class _Call(TrackedCall):
    """Tracked call with its span and the spans of its running attempts."""

    __slots__ = ("attempt_spans", "span", "token")

    def __init__(self, begun: CallEvent, span: Span, token: Token[Context]) -> None:
        super().__init__(begun)
        self.span = span
        self.token = token
        self.attempt_spans: dict[int, tuple[Span, Token[Context]]] = {}


class CallSpans(CallTracker[_Call, CallEvent]):
    """Observer that makes the spans. Events arrive in the task of the call, so the spans are current in that task."""

    def __init__(self, tracer: Tracer, capture: Capture) -> None:
        super().__init__()
        self._tracer = tracer
        self._capture = capture

    def begun(self, event: CallEvent) -> _Call:
        tool = sendable(event.tool)  # invented by the model: may have lone surrogates
        attributes: Attributes = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: tool,
            names.TOOL_TYPE: "function",
            names.BATCH: event.batch,
        }
        if event.call_id is not None:
            attributes[names.TOOL_CALL_ID] = sendable(event.call_id)
        if event.description:
            attributes[names.TOOL_DESCRIPTION] = event.description
        if event.run is not None:
            attributes |= of_run(event.run.agent, event.run.thread_id, event.run.run_id)
        if event.resumes is not None:
            attributes[names.RESUMED] = True
        if self._capture.wanted and event.call is not None:
            attributes[names.TOOL_ARGUMENTS] = self._capture.text(event.call.get("args"))
        span = self._tracer.start_span(
            f"{names.EXECUTE_TOOL} {tool}",
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            links=link_to_call(event.resumes),
        )
        # CALL finds the span of the call also where the span of an attempt is the current one; see `_links.mark`.
        token = context.attach(context.set_value(CALL, span, trace.set_span_in_context(span)))
        return _Call(event, span, token)

    def gave_up(self, call: _Call, event: CallEvent, since: float) -> None:
        facts: Attributes = {names.QUEUE_WAIT: event.queue_wait}
        if event.error is not None:
            facts[names.ERROR_TYPE] = error_type(event.error)
        call.span.add_event(names.GAVE_UP, facts)

    def started(self, call: _Call, event: CallEvent, waited_since: float | None) -> None:
        attributes: Attributes = {names.ATTEMPT_NUMBER: event.attempt}
        if event.queue_wait:
            attributes[names.QUEUE_WAIT] = event.queue_wait
        span = self._tracer.start_span(f"{names.ATTEMPT} {event.tool}", attributes=attributes)
        call.attempt_spans[event.attempt] = span, context.attach(trace.set_span_in_context(span))

    def attempt_ended(self, call: _Call, event: CallEvent, since: float) -> None:
        span, token = call.attempt_spans.pop(event.attempt)
        context.detach(token)
        if event.error is not None:
            outcome = outcome_of(event.error)
            if outcome != "ok":
                span.set_attribute(names.OUTCOME, outcome)
            if has_failed(outcome):
                failed(span, event.error, self._capture)
        span.end()

    def noted(self, call: _Call, event: CallEvent) -> None:
        facts: Attributes = {names.PREFIX + key: _fact(value) for key, value in event.facts.items()}
        if event.message and self._capture.wanted:
            facts[names.MESSAGE] = self._capture.text(event.message)
        # SDKs bound the events of a span. Frequent progress goes to the attempt, so that it cannot displace decisions.
        is_progress = event.what == "progress" and event.attempt in call.attempt_spans
        span = call.attempt_spans[event.attempt][0] if is_progress else call.span
        span.add_event(names.PREFIX + event.what, facts)

    def ended(self, call: _Call, event: CallEvent) -> None:
        span = call.span
        context.detach(call.token)
        outcome = outcome_of(event.error)
        attributes: Attributes = {names.OUTCOME: outcome, names.ATTEMPTS: event.attempt}
        if event.queue_wait:
            attributes[names.QUEUE_WAIT] = event.queue_wait
        if event.error is not None:
            self._ended_with(span, event, event.error, outcome, attributes)
        elif self._capture.wanted:
            attributes[names.TOOL_RESULT] = self._capture.text(result_of(event.result))
        span.set_attributes(attributes)
        span.end()

    def _ended_with(
        self, span: Span, event: CallEvent, error: BaseException, outcome: Outcome, attributes: Attributes
    ) -> None:
        if isinstance(error, GraphInterrupt):
            interrupts = error.args[0] if error.args else ()
            attributes[names.INTERRUPTS] = [interrupt.id for interrupt in interrupts]
            span.add_event(names.INTERRUPTED)
        elif outcome == "cancelled":
            span.add_event(names.CANCELLED)
        # An error that became a ToolMessage was handled, and does not mark the span as failed.
        if outcome == "error" and event.result is not None:
            attributes[names.HANDLED] = error_type(error)
        elif has_failed(outcome):
            failed(span, error, self._capture)


def of_run(agent: str, thread_id: str | None, run_id: str) -> Attributes:
    """Return the attributes of the run that made a call: agent, conversation id, run id."""
    found: Attributes = {}
    if agent:
        found[names.AGENT_NAME] = agent
    if thread_id is not None:
        found[names.CONVERSATION] = thread_id
    if run_id:
        found[names.RUN_ID] = run_id
    return found


def failed(span: Span, error: BaseException, capture: Capture) -> None:
    """Mark a span as failed. The error's text may contain arguments, so it is exported only if arguments are."""
    kind = error_type(error)
    facts: Attributes = {names.EXCEPTION_TYPE: kind}
    attributes: Attributes = {names.ERROR_TYPE: kind}
    description = str(error) if type(error) in _WITHOUT_ARGUMENTS else None
    if capture.wanted:
        description = facts[names.EXCEPTION_MESSAGE] = capture.error_text(error)
    if isinstance(error, CallTimeoutError):
        attributes[names.IDLE_TIMEOUT if error.idle else names.TIMEOUT] = error.timeout
    elif isinstance(error, DeadlineExceededError):
        attributes[names.BUDGET] = error.budget
    span.set_attributes(attributes)
    span.add_event(names.EXCEPTION, facts)
    span.set_status(Status(StatusCode.ERROR, description))


def _fact(value: object) -> Any:
    """Return a fact of a note as a valid value of a span attribute."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return [sendable(one) for one in value]
    return sendable(str(value))
