"""Observers that nobody has asked for: spans and metrics where the application has an SDK, logs where it wants them."""

import logging
from functools import cache
from typing import Any

from opentelemetry import metrics, trace

from callboard._calls._observers import LOGGER, Observers, joined
from callboard.telemetry._identity import Same

_NOBODY = Observers()
_over: set[Same] = set()
_calls, _all = logging.getLogger(LOGGER), logging.getLogger("callboard")


def ambient_observers(kinds: frozenset[str]) -> Observers:
    """The observers of what is started now, without those whose kind is there already.

    Asked for each batch, and mostly for nothing: hence without a word too many.
    """
    found = _NOBODY
    if is_set_up(tracers := trace.get_tracer_provider()) and "spans" not in kinds:
        found = _tracing(Same(tracers))
    if is_set_up(meters := metrics.get_meter_provider()) and "metrics" not in kinds:
        found = joined(found, _metrics(Same(meters)))
    if (_calls.level or _all.level) and "logs" not in kinds:
        found = joined(found, _logs())
    return found


def is_set_up(provider: Any) -> bool:
    """Whether what a provider makes goes anywhere."""
    return not is_stand_in(provider) and (not _over or Same(provider) not in _over)


def is_stand_in(provider: Any) -> bool:
    """Whether a provider is nobody's, but the API's own, which makes nothing."""
    return _is_of_api(type(provider).__module__)


@cache
def _is_of_api(module: str) -> bool:
    return module.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def end(provider: Any) -> None:
    """Shut a provider down; it stays the process's, because the API takes one only."""
    _over.add(Same(provider))
    provider.shutdown()


# There is one provider a process; two, where tests replace theirs.
@cache
def _tracing(provider: Same) -> Observers:
    from callboard.telemetry._tracing import Tracing

    try:
        return Tracing(provider.one).observers
    except ImportError as error:
        # An environment variable has asked for it: whoever makes a call has not, and it must not fail.
        _all.warning("arguments and results are not captured: %s", error)
        return Tracing(provider.one, capture=False).observers


@cache
def _metrics(provider: Same) -> Observers:
    from callboard.telemetry._metrics import Metrics

    return Metrics(provider.one).observers


@cache
def _logs() -> Observers:
    from callboard.telemetry._logs import Logs  # with structlog, which takes a tenth of a second

    return Logs().observers
