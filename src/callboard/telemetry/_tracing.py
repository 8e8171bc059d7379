"""OpenTelemetry spans: over runs of agents, model requests, calls, attempts and asks of actors."""

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

    There is one by itself as soon as the application has set up an SDK; make your own for a provider that is not
    the process's, or for other settings.

    Args:
        provider: makes the tracer; by default the process's.
        capture: whether arguments, results and messages are on the spans; `None` to ask the environment variable
            OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT (SPAN_ONLY, SPAN_AND_EVENT or true for yes).
        redact: takes secrets out of what is captured, a value of plain JSON types; `True` for what
            `callboard.middleware.Redact()` finds, `False` for nothing.
        max_length: characters of one captured value, at least 1; what is longer is cut.

    Raises:
        ValueError: if `max_length` is less than 1.
        ImportError: if `Redact()` is to be asked, and needs what is not installed.
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

        # Asked late, like the API's own stand-in: the process may get its provider after this.
        def spotter() -> Spotter:
            return spotter_of(provider or trace.get_tracer_provider())

        self.observers: Observers = careful_observers(
            CallSpans(tracer, kept), RunSpans(tracer, kept, spotter), ActorSpans(tracer, kept), mark=mark, kind="spans"
        )

    @contextmanager
    def on(self) -> Generator[None]:
        """Trace what is started inside the block, and nothing else."""
        with observed_by(self.observers):
            yield
