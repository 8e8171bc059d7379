"""Checked reading of the fields of a recording's line. Any field may be missing or damaged."""

from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]

_FOREVER = 1e12
"""Limit of a plausible time, in seconds. Larger values and NaN count as damage."""


def text(event: Event, name: str) -> str | None:
    """Return a field as text, or `None` if it is missing."""
    value = event.get(name)
    return None if value is None else str(value)


def whole(event: Event, name: str, default: int | None = None) -> int:
    """Return a field as an integer; raise ValueError if it is not one, or is missing without a default."""
    value = event.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name!r} is {value!r}, and should be a whole number")
    return value


def real(event: Event, name: str, default: float | None = 0.0) -> float:
    """Return a field as seconds; raise ValueError if it is no plausible number, or is missing without a default."""
    # `not ... <` and not `>=`: a comparison with NaN is false.
    value = event.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _FOREVER:
        raise ValueError(f"{name!r} is {value!r}, and should be a number of seconds")
    return float(value)
