"""Checks of options that users give; the errors name the option."""

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Final

LONGEST: Final = 30 * 86_400.0
"""Largest lease or patience, in seconds; servers count them in whole micro- and milliseconds."""


def check_counts(whose: str, options: Iterable[tuple[str, object, int]]) -> None:
    """Raise ValueError for an option (name, value, minimum) that is not a whole number, or is out of range."""
    for option, number, least in options:
        if (
            isinstance(number, int) and abs(number) > sys.maxsize
        ):  # without its text, which may have thousands of digits
            raise ValueError(
                f"{whose}({option}=...) is at most {sys.maxsize:,}, got one of {number.bit_length():,} bits"
            )
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"{whose}({option}={number!r}) is a whole number, at least {least}")


def check_durations(whose: str, *, may_be_zero: bool = False, **options: object) -> None:
    """Raise ValueError or TypeError for an option that is not a positive, finite number of seconds."""
    least = "at least 0" if may_be_zero else "more than 0"
    for option, seconds in options.items():
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(f"{whose}({option}={seconds!r}) is a number of seconds")
        if not 0 <= seconds < math.inf or (seconds == 0 and not may_be_zero):
            raise ValueError(f"{whose}({option}={seconds!r}) is a number of seconds, {least}")


def check_seconds(whose: str, options: Iterable[tuple[str, object, float]], longest: float = LONGEST) -> None:
    """Raise an error for an option (name, value, minimum) that is not a number of seconds from minimum to `longest`."""
    for option, value, least in options:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{whose}({option}=...) is a number of seconds, got {value!r}")
        if not least <= value <= longest:
            raise ValueError(f"{whose}({option}=...) is {least:g} to {longest:g} seconds, got {value!r}")


def variables(title: str, value: object) -> dict[str, str]:
    """Check and return environment variables that a user gives; raise TypeError or ValueError if they are invalid."""
    if not isinstance(value, Mapping):
        # The errors show names and types only: values may be secret keys.
        raise TypeError(f"{title} is a mapping of names to texts, got one of type {type(value).__name__}")
    checked: dict[str, str] = {}
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(
                f"{title} has {name!r} with a value of type {type(text).__name__}, and both have to be strings"
            )
        if not name or "=" in name or "\0" in name + text:
            raise ValueError(f"{title} has {name!r} with a text or a name that no process can have")
        checked[name] = text
    return checked
