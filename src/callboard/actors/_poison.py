"""Poison detection: counts the calls that have crashed their actor."""

from collections.abc import Mapping
from typing import Any

from callboard._util._canonical import digest, place_of

_KEPT = 100
"""Maximum number of counted calls; the least recent is dropped first."""


class Poison:
    """Crashes of an actor by call. Arguments that are not JSON count by their type alone.

    Args:
        limit: number of crashes after which a call is refused.
    """

    __slots__ = ("_limit", "times")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.times: dict[str, int] = {}
        """Number of crashes, by identity of the call; ordered by the last crash."""

    def refuses(self, handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Return the number of crashes by this call if it reaches the limit; `None` otherwise."""
        times = self.times.get(_key(handler, args, kwargs), 0)
        return times if times >= self._limit else None

    def has_ended(self, handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, bool]:
        """Count a crash by this call; return the call's identity, and whether it is refused from now on."""
        key = _key(handler, args, kwargs)
        # Removed and inserted again, so that the oldest entry is the first.
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

    An argument without JSON must not exempt a call from the count: it could crash its actor for ever.
    """
    try:
        return digest(value)
    except Exception:  # the code of a model or of a property may raise anything
        return f"%{place_of(type(value))}"
