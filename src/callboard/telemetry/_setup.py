"""`setup`: OTLP export and log lines for applications without an OpenTelemetry SDK of their own."""

import logging
import os
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Literal

import structlog
from opentelemetry import metrics, trace

from callboard._calls._observers import observe_everywhere
from callboard._util._extras import install_command
from callboard.telemetry._capture import Capture, Redactor
from callboard.telemetry._default_observers import is_noop, is_set_up, shut_down
from callboard.telemetry._metrics import Metrics
from callboard.telemetry._tracing import Tracing

LogFormat = Literal["console", "json"]
Signal = Literal["traces", "metrics"]


class Telemetry(AbstractContextManager["Telemetry"]):
    """Handle of the telemetry that `setup` started; end it with `shutdown()`, or use it as a `with` block."""

    def __init__(self, ends: ExitStack) -> None:
        self._ends = ends

    def shutdown(self) -> None:
        """Export the pending spans and metrics, stop observing, and remove the log handler."""
        self._ends.close()

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def setup(
    *,
    endpoint: str | None = None,
    traces: bool = True,
    metrics: bool = True,
    logs: LogFormat | None = None,
    log_level: int | str = "INFO",
    capture: bool | None = None,
    redact: Redactor | bool = True,
) -> Telemetry:
    """Observe all calls of the process; send spans and metrics over OTLP (HTTP) until the returned handle is shut down.

    The providers of an application's own SDK are used unchanged. OpenTelemetry's environment variables apply, such as
    OTEL_SERVICE_NAME (by default "callboard") and OTEL_EXPORTER_OTLP_HEADERS.

    Args:
        endpoint: base URL of an OTLP receiver; by default OTEL_EXPORTER_OTLP_ENDPOINT, or "http://localhost:4318".
        traces: make spans.
        metrics: record metrics; turn them off for receivers of traces only, such as Phoenix.
        logs: format of log lines on stderr; `None` for no lines.
        log_level: level of the log lines.
        capture: put arguments, results and messages on spans; as for `Tracing`.
        redact: removal of secrets from captured values; as for `Tracing`.

    Raises `ImportError` if a package of an extra is missing, `ValueError` for an unknown format of `logs`, and
    `TypeError` for a `redact` that is no plain function.
    """
    Capture(capture, redact)  # raises its errors before anything has started
    with ExitStack() as ends:  # undoes a set-up that fails half-way: its caller gets no handle
        if logs is not None:
            _add_handler(ends, logs, log_level)
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true":
            if traces:
                spans = _provider(ends, "traces", endpoint)
                ends.callback(observe_everywhere(Tracing(spans, capture=capture, redact=redact).observers))
            if metrics:
                meters = _provider(ends, "metrics", endpoint)
                ends.callback(observe_everywhere(Metrics(meters).observers))
        return Telemetry(ends.pop_all())


def _provider(ends: ExitStack, signal: Signal, endpoint: str | None) -> Any:
    """Return the global provider of traces or metrics if it is set up or export is off; else return a new provider."""
    provider: Any = trace.get_tracer_provider() if signal == "traces" else metrics.get_meter_provider()
    if is_set_up(provider) or os.environ.get(f"OTEL_{signal.upper()}_EXPORTER") == "none":
        return provider
    # Without an endpoint, the exporter reads the environment.
    url = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{signal}"
    try:
        new_provider: Any
        from opentelemetry.sdk.resources import Resource

        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME") or "callboard"})
        if signal == "traces":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            new_provider = TracerProvider(resource=resource)
            new_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        else:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

            reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=url))
            new_provider = MeterProvider([reader], resource=resource)
    except ImportError:
        raise ImportError(
            "callboard.telemetry.setup() sends over OTLP with OpenTelemetry's SDK, which is not installed: "
            f"{install_command('callboard', 'otel')}"
        ) from None
    # After an earlier `setup()`, its ended provider is still the global one, which the API never replaces. Then only
    # the observers of this `setup()` use the new provider.
    if is_noop(provider):
        (trace.set_tracer_provider if signal == "traces" else metrics.set_meter_provider)(new_provider)
    # Registered before the observers, so `shutdown()` calls it after them: no span begins on a provider that is down.
    ends.callback(shut_down, new_provider)
    return new_provider


def _add_handler(ends: ExitStack, kind: str, level: int | str) -> None:
    if kind not in ("console", "json"):
        raise ValueError(f"setup(logs=...) is 'console', 'json' or None, got {kind!r}")
    logger = logging.getLogger("callboard")
    handler = logging.StreamHandler()
    # See no-color.org. A file gets no colours either.
    handler.setFormatter(formatter(kind, is_coloured=handler.stream.isatty() and not os.environ.get("NO_COLOR")))
    before = logger.level, logger.propagate

    def restore() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]

    ends.callback(restore)  # first: `setLevel` raises an error for an unknown level
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False  # or a handler of the root logger would print each line a second time


def formatter(kind: str, *, is_coloured: bool = False) -> logging.Formatter:
    """Return a `logging.Formatter` for callboard's log lines; `kind` is "console" or "json"."""
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if kind == "json":
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=repr)]
    else:
        last.append(structlog.dev.ConsoleRenderer(colors=is_coloured))
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last)
