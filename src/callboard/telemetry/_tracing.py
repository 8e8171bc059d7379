"""OpenTelemetry spans of agent runs, model requests, calls, attempts and asks of actors."""

from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import TracerProvider

import callboard.telemetry._names as names
from callboard._calls._observers import Observers, careful_observers, observed_by
from callboard.telemetry._actor_spans import ActorSpans
from callboard.telemetry._call_spans import CallSpans
from callboard.telemetry._capture import MAX_LENGTH, Capture, Redactor
from callboard.telemetry._foreign_spans import Spotter, spotter_of
from callboard.telemetry._links import mark
from callboard.telemetry._run_spans import RunSpans


class Tracing:
    """Spans of the OpenTelemetry conventions for generative AI, through any tracer provider.

    callboard makes spans by itself once the application has set up an SDK. Make an instance only for another provider,
    or for other settings.

    Args:
        provider: source of the tracer; by default the global tracer provider.
        capture: put arguments, results and messages on the spans; `None` reads the environment variable
            OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT (SPAN_ONLY, SPAN_AND_EVENT or true for yes).
        redact: function that removes secrets from captured values of plain JSON types; `True` for
            `callboard.middleware.Redact()`, `False` for no removal.
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
        def spotter() -> Spotter:
            return spotter_of(provider or trace.get_tracer_provider())

        self.observers: Observers = careful_observers(
            CallSpans(tracer, kept), RunSpans(tracer, kept, spotter), ActorSpans(tracer, kept), mark=mark, kind="spans"
        )

    @contextmanager
    def on(self) -> Generator[None]:
        """Trace only the calls, runs and asks that are started inside the block."""
        with observed_by(self.observers):
            yield
