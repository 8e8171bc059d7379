"""OpenTelemetry spans of agent runs, model requests, calls, attempts and asks of actors.

A restart or another change of an actor is a span event of each open ask that it affects.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Token
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Tracer, TracerProvider

import callboard.telemetry._names as names
from callboard._calls._observers import Observers, careful_observers, observed_by
from callboard._records._events import ActorEvent, AskEvent
from callboard.telemetry._call_spans import CallSpans, failed
from callboard.telemetry._capture import MAX_LENGTH, Capture, Redactor
from callboard.telemetry._links import mark
from callboard.telemetry._outcome import error_type, has_failed, outcome_of
from callboard.telemetry._run_spans import ForeignSpanProcessor, RunSpans, processor_of

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


class Tracing:
    """Spans of the OpenTelemetry conventions for generative AI, through any tracer provider.

    callboard makes spans by itself once the application has set up an SDK. Make an instance only for another provider,
    or for other settings.

    Args:
        provider: source of the tracer; by default the global tracer provider.
        capture: put arguments, results and messages on the spans; `None` reads the environment variable
            OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT (SPAN_ONLY, SPAN_AND_EVENT or true for yes).
        redact: function that removes secrets from captured values of plain JSON types; `True` for
            `callboard.guards.Redact()`, `False` for no removal.
        max_length: limit of one captured value in characters, at least 1; a longer value is cut.

    Raises:
        ValueError: if `max_length` is less than 1.
        ImportError: if `Redact()` is used, and a package that it needs is not installed.
    """

    def __init__(
        self,
        provider: TracerProvider | None = None,
        *,
        capture: bool | None = None,
        redact: Redactor | bool = True,
        max_length: int = MAX_LENGTH,
    ) -> None:
        tracer = (provider or trace.get_tracer_provider()).get_tracer(names.SCOPE)
        kept = Capture(capture, redact, max_length)

        # Resolved at each use, like the proxy tracer of the API: the application may set its provider after this.
        def spotter() -> ForeignSpanProcessor:
            return processor_of(provider or trace.get_tracer_provider())

        self.observers: Observers = careful_observers(
            CallSpans(tracer, kept), RunSpans(tracer, kept, spotter), ActorSpans(tracer, kept), mark=mark, kind="spans"
        )

    @contextmanager
    def on(self) -> Generator[None]:
        """Trace only the calls, runs and asks that are started inside the block."""
        with observed_by(self.observers):
            yield
