"""Observers that are active by default: spans and metrics if OpenTelemetry has an SDK, logs if a log level is set."""

import logging
from functools import cache
from typing import Any

from opentelemetry import metrics, trace

from callboard._calls._observers import LOGGER, Observers, join_observers
from callboard._util._identity import ByIdentity

_NOBODY = Observers()
_ended: set[ByIdentity] = set()
"""Providers that were shut down. They are still the global ones, because OpenTelemetry cannot replace them."""
_noop_classes: set[type] = set()
"""Classes of no-op providers that were found; empty before the first batch."""
_UNKNOWN: dict[str, object] = {}
"""Globals of a function that another package has put in the place of OpenTelemetry's."""
_calls_log, _log = logging.getLogger(LOGGER), logging.getLogger("callboard")


def default_observers(kinds: frozenset[str]) -> Observers:
    """Return the default observers for a new batch or run, except the kinds in `kinds`, which are active already."""
    # Runs once per batch, and usually finds nothing: only cheap checks here, and imports only on a hit.
    get_tracers, get_meters = trace.get_tracer_provider, metrics.get_meter_provider
    # While no provider is set, both functions search the environment, which takes longer than the rest of this one.
    # They did so at the first batch. From then on a provider that has been set is seen in the globals of the functions.
    if (
        _noop_classes
        and not _calls_log.level
        and not _log.level
        and getattr(get_tracers, "__globals__", _UNKNOWN).get("_TRACER_PROVIDER", _ended) is None
        and getattr(get_meters, "__globals__", _UNKNOWN).get("_METER_PROVIDER", _ended) is None
    ):
        return _NOBODY
    tracers, meters = get_tracers(), get_meters()
    observers = _NOBODY
    if is_set_up(tracers) and "spans" not in kinds:
        observers = _tracing(ByIdentity(tracers))
    if is_set_up(meters) and "metrics" not in kinds:
        observers = join_observers(observers, _metrics(ByIdentity(meters)))
    if (_calls_log.level or _log.level) and "logs" not in kinds:
        observers = join_observers(observers, _logs())
    return observers


def is_set_up(provider: Any) -> bool:
    """Return whether a provider of tracers or meters belongs to an SDK, and was not shut down."""
    return not is_noop(provider) and (not _ended or ByIdentity(provider) not in _ended)


def is_noop(provider: Any) -> bool:
    """Return whether a provider is the no-op default of the OpenTelemetry API, which records nothing."""
    if not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics")):
        return False
    _noop_classes.add(type(provider))
    return True


def shut_down(provider: Any) -> None:
    """Shut down a provider of tracers or meters. It stays the global provider, which cannot be replaced."""
    _ended.add(ByIdentity(provider))
    provider.shutdown()


# Unbounded, yet small: a process has one provider. Only tests replace it.
@cache
def _tracing(provider: ByIdentity) -> Observers:
    from callboard.telemetry._tracing import Tracing

    try:
        return Tracing(provider.value).observers
    except ImportError as error:
        # An environment variable asked for capture. The caller of a tool did not, so the call must not fail.
        _log.warning("arguments and results are not captured: %s", error)
        return Tracing(provider.value, capture=False).observers


@cache
def _metrics(provider: ByIdentity) -> Observers:
    from callboard.telemetry._metrics import Metrics

    return Metrics(provider.value).observers


@cache
def _logs() -> Observers:
    from callboard.telemetry._logs import Logs  # imports structlog, which takes 0.1 s

    return Logs().observers
