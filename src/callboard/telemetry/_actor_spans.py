"""Spans over asks of actors, with what became of the actor meanwhile."""

from contextvars import Token
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Tracer

import callboard.telemetry._names as names
from callboard._actor_events import ActorEvent, AskEvent
from callboard.telemetry._call_spans import failed
from callboard.telemetry._capture import Capture
from callboard.telemetry._outcome import error_type, has_failed, outcome_of

Attributes = dict[str, Any]


class ActorSpans:
    """Makes them from events, where somebody asks: the span is current there, and in the handler.

    Lives have no spans of their own, for they may last for days: those asks are told of one which wait for it.

    Args:
        tracer: makes the spans.
        capture: decides whether the keys of actors are on them.
    """

    def __init__(self, tracer: Tracer, capture: Capture) -> None:
        self._tracer = tracer
        self._capture = capture
        self._open: dict[int, tuple[Span, Token[Context]]] = {}

    def __call__(self, event: AskEvent | ActorEvent) -> None:
        """Take in what happened to an actor."""
        if isinstance(event, ActorEvent):
            self._lived(event)
        elif event.phase == "begun":
            self._begun(event)
        elif event.phase == "ended" and event.number in self._open:
            self._ended(event)

    def _begun(self, event: AskEvent) -> None:
        attributes: Attributes = {
            names.ACTOR: event.actor,
            names.ACTOR_HANDLER: event.handler,
            names.MAILBOX_LENGTH: event.ahead,
        }
        if self._capture.wanted and event.key is not None:
            attributes[names.ACTOR_KEY] = self._capture.text(event.key)
        span = self._tracer.start_span(f"{names.ASK} {event.actor}.{event.handler}", attributes=attributes)
        self._open[event.number] = span, context.attach(trace.set_span_in_context(span))

    def _ended(self, event: AskEvent) -> None:
        span, token = self._open.pop(event.number)
        context.detach(token)
        outcome = outcome_of(event.error)
        span.set_attributes({names.ACTOR_WAIT: event.waited, names.OUTCOME: outcome})
        if event.error is not None and has_failed(outcome):
            failed(span, event.error, self._capture)
        span.end()

    def _lived(self, event: ActorEvent) -> None:
        facts: Attributes = {names.ACTOR: event.actor}
        if event.error is not None:
            facts[names.ERROR_TYPE] = error_type(event.error)
        for number in event.asks:
            if (found := self._open.get(number)) is not None:
                found[0].add_event(f"{names.ACTOR}.{event.phase}", facts)
