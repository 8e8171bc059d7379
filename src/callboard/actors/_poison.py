"""Calls that have ended their actor before."""

from collections.abc import Mapping
from typing import Any

from callboard._canonical import digest

_KEPT = 100
"""Calls that are remembered; the oldest is forgotten first."""


class Poison:
    """How often each call has ended the actor. Arguments without a JSON of their own are not told apart, and pass.

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

    def has_ended(self, handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str | None, bool]:
        """Note that this call has; its name, if it can be told from others, and whether it is refused from now on."""
        key = _key(handler, args, kwargs)
        if not key:
            return None, False
        times = self.times.pop(key, 0) + 1
        self.times[key] = times
        if len(self.times) > _KEPT:
            del self.times[next(iter(self.times))]
        return key, times >= self._limit


def _key(handler: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    try:
        return digest([handler, args, kwargs])
    except (TypeError, ValueError, RecursionError):
        return ""
