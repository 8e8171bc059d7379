"""The fields of a line of a recording, which may be damaged."""

from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]

_FOREVER = 1e12
"""Seconds; a time beyond is damage, as is one that is not a number."""


def text(event: Event, name: str) -> str | None:
    """A field as text; `None` if it is missing."""
    value = event.get(name)
    return None if value is None else str(value)


def whole(event: Event, name: str, default: int | None = None) -> int:
    """A field that is a whole number.

    Raises:
        ValueError: if it is none, or missing and there is no default.
    """
    value = event.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name!r} is {value!r}, and should be a whole number")
    return value


def real(event: Event, name: str, default: float | None = 0.0) -> float:
    """A field that is a number of seconds.

    Raises:
        ValueError: as above, or if there are no such seconds.
    """
    value = event.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _FOREVER:
        raise ValueError(f"{name!r} is {value!r}, and should be a number of seconds")
    return float(value)
