"""Checks of numeric options of actors, with the option's name and value in the error."""

import math
from collections.abc import Iterable
from typing import Final

LONGEST: Final = 30 * 86_400.0
"""Largest lease or patience, in seconds; servers count them in whole micro- and milliseconds."""


def check_counts(whose: str, options: Iterable[tuple[str, object, int]]) -> None:
    """Raise ValueError for an option that is not a whole number, or is less than its minimum.

    Each option is given as its name, its value and its minimum.
    """
    for option, number, least in options:
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"{whose}({option}={number!r}) is a whole number, at least {least}")


def check_durations(whose: str, *, may_be_zero: bool = False, **options: object) -> None:
    """Raise ValueError or TypeError for an option that is not a positive, finite number of seconds.

    With `may_be_zero`, zero is allowed, too.
    """
    for option, seconds in options.items():
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(f"{whose}({option}={seconds!r}) is a number of seconds")
        if not 0 <= seconds < math.inf or (seconds == 0 and not may_be_zero):
            raise ValueError(f"{whose}({option}={seconds!r}) is a number of seconds, more than 0")


def check_seconds(whose: str, options: Iterable[tuple[str, object, float]], longest: float = LONGEST) -> None:
    """Raise TypeError or ValueError for an option that is not a number of seconds from its minimum to `longest`.

    Each option is given as its name, its value and its minimum.
    """
    for option, value, least in options:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{whose}({option}=...) is a number of seconds, got {value!r}")
        if not least <= value <= longest:
            raise ValueError(f"{whose}({option}=...) is {least:g} to {longest:g} seconds, got {value!r}")
