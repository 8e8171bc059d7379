"""What watches without being asked to: spans and metrics where the application has an SDK, logs where it wants them."""

import logging
import sys
from functools import cache
from typing import Any

from callboard._events import Watch, joined
from callboard.telemetry._logs import LOGGER, Logs
from callboard.telemetry._same import Same

_over: set[Same] = set()
_loggers = (logging.getLogger(LOGGER), logging.getLogger("callboard"))


def watching(kinds: frozenset[str]) -> Watch:
    """Those who watch what is started now, without those whose kind is there already."""
    found = Watch()
    if "opentelemetry.trace" in sys.modules:
        found = _by_opentelemetry(kinds)
    if "logs" not in kinds and any(logger.level for logger in _loggers):
        found = joined(found, _logs())
    return found


def _by_opentelemetry(kinds: frozenset[str]) -> Watch:
    from opentelemetry import metrics, trace

    found = Watch()
    if "spans" not in kinds and is_set_up(tracers := trace.get_tracer_provider()):
        found = _tracing(Same(tracers))
    if "metrics" not in kinds and is_set_up(meters := metrics.get_meter_provider()):
        found = joined(found, _metrics(Same(meters)))
    return found


def is_set_up(provider: object) -> bool:
    """Whether what a provider makes goes anywhere."""
    return not is_stand_in(provider) and Same(provider) not in _over


def is_stand_in(provider: object) -> bool:
    """Whether a provider is nobody's, but the API's own, which makes nothing."""
    return type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def end(provider: Any) -> None:
    """Shut a provider down; it stays the process's, because the API takes one only."""
    _over.add(Same(provider))
    provider.shutdown()


# There is one provider a process; two, where tests replace theirs.
@cache
def _tracing(provider: Same) -> Watch:
    from callboard.telemetry._tracing import Tracing

    return Tracing(provider.one).watch


@cache
def _metrics(provider: Same) -> Watch:
    from callboard.telemetry._metrics import Metrics

    return Metrics(provider.one).watch


@cache
def _logs() -> Watch:
    return Logs().watch
