"""Who is told what happens to calls. Knows the record, not what anybody does with it."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from callboard._types import CallEvent, Observer

_log = logging.getLogger("callboard")

_observers: ContextVar[tuple[Observer, ...]] = ContextVar("callboard_observers", default=())


@contextmanager
def observe(observer: Observer) -> Generator[None]:
    """Tell `observer` every `CallEvent` of the calls that are started inside the block.

    Args:
        observer: called in the event loop's thread for each event; an exception it raises is logged
            once and otherwise ignored, because watching a call must not change it.
    """
    token = _observers.set((*_observers.get(), _careful(observer)))
    try:
        yield
    finally:
        _observers.reset(token)


def current_observers() -> tuple[Observer, ...]:
    """The observers of the calls that are started here."""
    return _observers.get()


def _careful(observer: Observer) -> Observer:
    broken = False

    def tell(event: CallEvent) -> None:
        nonlocal broken
        try:
            observer(event)
        except Exception:
            if not broken:
                broken = True
                _log.exception("the observer %r failed; this is reported once", observer)

    return tell
