"""Options of actors that are numbers: checked where they are written, with the name and the value in the error."""

import math
from collections.abc import Iterable


def check_counts(whose: str, options: Iterable[tuple[str, object, int]]) -> None:
    """Raise ValueError for an option that is no whole number, or too small a one.

    Args:
        whose: the class that a user has written, for errors.
        options: the name of each, its value, and the least that it may be.
    """
    for option, number, least in options:
        if not isinstance(number, int) or number < least:
            raise ValueError(f"{whose}({option}={number!r}) is a number, at least {least}")


def check_durations(whose: str, **options: object) -> None:
    """Raise for an option that is no time, which has an end and is more than none.

    Args:
        whose: the class that a user has written, for errors.
        options: seconds, by the name of the option.

    Raises:
        ValueError: for zero, less than that, infinity and NaN.
        TypeError: for what is no number.
    """
    for option, seconds in options.items():
        if not isinstance(seconds, (int, float)):
            raise TypeError(f"{whose}({option}={seconds!r}) is a number of seconds")
        if not 0 < seconds < math.inf:
            raise ValueError(f"{whose}({option}={seconds!r}) is a number of seconds")
