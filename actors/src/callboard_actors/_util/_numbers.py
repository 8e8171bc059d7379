"""Checks of numeric options of actors, with the option's name and value in the error."""

import math
from collections.abc import Iterable


def check_counts(whose: str, options: Iterable[tuple[str, object, int]]) -> None:
    """Raise ValueError for an option (name, value, least) that is not a whole number, or less than its least."""
    for option, number, least in options:
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"{whose}({option}={number!r}) is a whole number, at least {least}")


def check_durations(whose: str, *, may_be_zero: bool = False, **options: object) -> None:
    """Raise ValueError or TypeError for an option that is not a positive, finite number of seconds."""
    for option, seconds in options.items():
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(f"{whose}({option}={seconds!r}) is a number of seconds")
        if not 0 <= seconds < math.inf or (seconds == 0 and not may_be_zero):
            raise ValueError(f"{whose}({option}={seconds!r}) is a number of seconds, more than 0")
