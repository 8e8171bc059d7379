"""Calls that have ended their actor before."""

from collections.abc import Mapping
from typing import Any

from callboard._canonical import digest, place_of

_KEPT = 100
"""Calls that are remembered; the oldest is forgotten first."""


class Poison:
    """How often each call has ended the actor. Arguments without JSON of their own count by their type alone.

    Args:
        limit: how often one call may do so before it is refused.
    """

    __slots__ = ("_limit", "times")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.times: dict[str, int] = {}
        """By what names the call."""

    def refuses(self, handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """How often this call has ended the actor, if that is too often."""
        times = self.times.get(_key(handler, args, kwargs), 0)
        return times if times >= self._limit else None

    def has_ended(self, handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, bool]:
        """Note that this call has; return its name among calls, and whether it is refused from now on."""
        key = _key(handler, args, kwargs)
        times = self.times.pop(key, 0) + 1
        self.times[key] = times
        if len(self.times) > _KEPT:
            del self.times[next(iter(self.times))]
        return key, times >= self._limit


def _key(handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    named = [handler, [_digest(one) for one in args], {name: _digest(one) for name, one in kwargs.items()}]
    return digest(named)


def _digest(value: object) -> str:
    """Return a digest of one argument: of its JSON, or of its type if it has none.

    A call must not escape the count because of one argument: it would end its actor for ever.
    """
    try:
        return digest(value)
    except Exception:  # the code of a model or of a property may raise anything
        return f"%{place_of(type(value))}"
