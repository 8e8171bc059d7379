"""Observers that are active by default: spans and metrics if OpenTelemetry has an SDK, logs if a log level is set."""

import logging
from functools import cache
from typing import Any

from opentelemetry import metrics, trace

from callboard._calls._observers import LOGGER, Observers, join_observers
from callboard._util._identity import ByIdentity

_NOBODY = Observers()
_over: set[ByIdentity] = set()
"""Providers that `end()` has shut down. They are still the global ones, because OpenTelemetry cannot replace them."""
_silent: set[type] = set()
"""Classes of no-op providers that were found; empty before the first batch."""
_UNKNOWN: dict[str, object] = {}
"""Globals of a function that another package has put in the place of OpenTelemetry's."""
_calls, _all = logging.getLogger(LOGGER), logging.getLogger("callboard")


def default_observers(kinds: frozenset[str]) -> Observers:
    """Return the default observers for a new batch or run, except the kinds in `kinds`, which are active already."""
    # Runs once per batch, and usually finds nothing: only cheap checks here, and imports only on a hit.
    tracing, metering = trace.get_tracer_provider, metrics.get_meter_provider
    # While no provider is set, both functions search the environment, which takes longer than the rest of this one.
    # They did so at the first batch. From then on a provider that has been set is seen in the globals of the functions.
    if (
        _silent
        and not _calls.level
        and not _all.level
        and getattr(tracing, "__globals__", _UNKNOWN).get("_TRACER_PROVIDER", _over) is None
        and getattr(metering, "__globals__", _UNKNOWN).get("_METER_PROVIDER", _over) is None
    ):
        return _NOBODY
    tracers, meters = tracing(), metering()
    if tracers.__class__ in _silent and meters.__class__ in _silent and not _calls.level and not _all.level:
        return _NOBODY
    found = _NOBODY
    if is_set_up(tracers) and "spans" not in kinds:
        found = _tracing(ByIdentity(tracers))
    if is_set_up(meters) and "metrics" not in kinds:
        found = join_observers(found, _metrics(ByIdentity(meters)))
    if (_calls.level or _all.level) and "logs" not in kinds:
        found = join_observers(found, _logs())
    return found


def is_set_up(provider: Any) -> bool:
    """Return whether a provider of tracers or meters belongs to an SDK, and was not shut down."""
    return not is_noop(provider) and (not _over or ByIdentity(provider) not in _over)


def is_noop(provider: Any) -> bool:
    """Return whether a provider is the no-op default of the OpenTelemetry API, which records nothing."""
    if not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics")):
        return False
    _silent.add(type(provider))
    return True


def end(provider: Any) -> None:
    """Shut down a provider of tracers or meters. It stays the global provider, which cannot be replaced."""
    _over.add(ByIdentity(provider))
    provider.shutdown()


# Unbounded, yet small: a process has one provider. Only tests replace it.
@cache
def _tracing(provider: ByIdentity) -> Observers:
    from callboard.telemetry._tracing import Tracing

    try:
        return Tracing(provider.value).observers
    except ImportError as error:
        # An environment variable asked for capture. The caller of a tool did not, so the call must not fail.
        _all.warning("arguments and results are not captured: %s", error)
        return Tracing(provider.value, capture=False).observers


@cache
def _metrics(provider: ByIdentity) -> Observers:
    from callboard.telemetry._metrics import Metrics

    return Metrics(provider.value).observers


@cache
def _logs() -> Observers:
    from callboard.telemetry._logs import Logs  # imports structlog, which takes 0.1 s

    return Logs().observers
