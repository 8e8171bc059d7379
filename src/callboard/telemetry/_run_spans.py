"""Spans of agent runs and of their model requests."""

import time
from collections.abc import Callable
from contextvars import Token
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer

import callboard.telemetry._names as names
from callboard._records._events import RunEvent
from callboard.telemetry._call_spans import Attributes, failed, of_run
from callboard.telemetry._capture import Capture, conversation
from callboard.telemetry._foreign_spans import Foreign, Spotter
from callboard.telemetry._links import RUN, link_to_run
from callboard.telemetry._model_facts import about_model, about_reply
from callboard.telemetry._outcome import has_failed, outcome_of, outcome_of_run

_TOKENS = (names.INPUT_TOKENS, names.OUTPUT_TOKENS)


@dataclass(slots=True)
class _Request:
    """Model request that is not answered yet."""

    since: int
    """Start, in nanoseconds since 1970."""
    token: Token[Context]
    foreign: Foreign
    given: str | None


@dataclass(slots=True)
class _OpenRun:
    """Open run with its span and its token counts so far."""

    span: Span
    token: Token[Context]
    tokens: dict[str, int]
    about: Attributes
    request: _Request | None = None


class RunSpans:
    """Observer that makes the spans, in the task that sends the event.

    The span of a model request is made after the request, with its start time set back. Only then is it known whether
    the model, or another instrumentation, has made a span of the same request.

    Args:
        tracer: source of the spans.
        capture: filter for messages.
        spotter: function that returns the span processor of the provider in use now.
    """

    def __init__(self, tracer: Tracer, capture: Capture, spotter: Callable[[], Spotter]) -> None:
        self._tracer = tracer
        self._capture = capture
        self._spotter = spotter
        self._open: dict[int, _OpenRun] = {}

    def __call__(self, event: RunEvent) -> None:
        """Begin or end the span that an event is about."""
        if event.phase == "begun":
            self._begun(event)
            return
        run = self._open.get(event.run.number)
        if run is None:
            return
        if event.phase == "asked":
            self._asked(run, event)
        elif event.phase == "answered":
            self._answered(run, event)
        else:
            self._ended(run, event)

    def _begun(self, event: RunEvent) -> None:
        info = event.run
        attributes: Attributes = {names.OPERATION: names.INVOKE_AGENT, names.PROVIDER: "unknown"}
        attributes |= of_run(info.agent, info.thread_id, info.run_id)
        if info.namespace:
            attributes[names.NAMESPACE] = info.namespace
        if info.resumes is not None:
            attributes[names.RESUMED] = True
        if self._capture.wanted and (messages := conversation(event.given)):
            attributes[names.INPUT_MESSAGES] = self._capture.text(messages)
        span = self._tracer.start_span(
            f"{names.INVOKE_AGENT} {info.agent}".rstrip(),
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            links=link_to_run(info.resumes),
        )
        token = context.attach(context.set_value(RUN, span, trace.set_span_in_context(span)))
        self._open[info.number] = _OpenRun(span, token, {}, about_model(event.model))

    def _asked(self, run: _OpenRun, event: RunEvent) -> None:
        given = None
        if self._capture.wanted:
            given = self._capture.text(conversation(event.given))
        run.about = about_model(event.model)
        foreign = Foreign()
        run.request = _Request(time.time_ns(), context.attach(self._spotter().following(foreign)), foreign, given)

    def _answered(self, run: _OpenRun, event: RunEvent) -> None:
        request, run.request = run.request, None
        if request is None:
            return
        context.detach(request.token)
        reply = event.result if isinstance(event.result, AIMessage) else None
        said = about_reply(reply, run.about)
        for key in _TOKENS:
            run.tokens[key] = run.tokens.get(key, 0) + said.get(key, 0)
        run.about = {key: said[key] for key in (names.PROVIDER, names.REQUEST_MODEL) if key in said}
        if request.foreign.was_seen:
            return
        attributes: Attributes = {names.OPERATION: names.CHAT, **said, **_conversation_of(event)}
        if request.given is not None:
            attributes[names.INPUT_MESSAGES] = request.given
            if reply is not None:
                attributes[names.OUTPUT_MESSAGES] = self._capture.text(conversation(reply))
        span = self._tracer.start_span(
            f"{names.CHAT} {said.get(names.REQUEST_MODEL, '')}".rstrip(),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=request.since,
        )
        if event.error is not None and has_failed(outcome_of(event.error)):
            failed(span, event.error, self._capture)
        span.end()

    def _ended(self, run: _OpenRun, event: RunEvent) -> None:
        del self._open[event.run.number]
        context.detach(run.token)
        outcome = outcome_of_run(event)
        attributes: Attributes = {names.OUTCOME: outcome, **run.about}
        attributes |= {key: number for key, number in run.tokens.items() if number}
        if event.questions:
            attributes[names.QUESTIONS] = event.questions
        if self._capture.wanted and (messages := conversation(event.result)):
            attributes[names.OUTPUT_MESSAGES] = self._capture.text(messages[-1:])
        run.span.set_attributes(attributes)
        if event.error is not None and has_failed(outcome):
            failed(run.span, event.error, self._capture)
        run.span.end()


def _conversation_of(event: RunEvent) -> dict[str, Any]:
    return {} if event.run.thread_id is None else {names.CONVERSATION: event.run.thread_id}
