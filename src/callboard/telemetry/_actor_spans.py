"""Spans of asks to actors, with span events for restarts and other changes of the actor."""

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
    """Observer that makes one span per ask. The span is current in the asking task and in the handler.

    The lifetime of an actor has no span, because it may last for days. Instead, a change of the actor is added as
    a span event to each open ask that the change affects.
    """

    def __init__(self, tracer: Tracer, capture: Capture) -> None:
        self._tracer = tracer
        self._capture = capture
        self._open: dict[int, tuple[Span, Token[Context]]] = {}

    def __call__(self, event: AskEvent | ActorEvent) -> None:
        """Begin, annotate or end the span that an event is about."""
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
        # The event "ended" arrives in the same task; the token can be detached only in the context that made it.
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
        for number in event.asks:  # an ask may have begun before this observer
            if (found := self._open.get(number)) is not None:
                found[0].add_event(f"{names.ACTOR}.{event.phase}", facts)
