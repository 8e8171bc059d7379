"""Checks of options that users give; the errors name the option."""

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Final

MAX_SECONDS: Final = 30 * 86_400.0
"""Largest lease or patience, in seconds; servers count them in whole micro- and milliseconds."""


def check_counts(callable_name: str, options: Iterable[tuple[str, object, int]]) -> None:
    """Raise ValueError for an option (name, value, minimum) that is not a whole number, or is out of range."""
    for option, number, least in options:
        if (
            isinstance(number, int) and abs(number) > sys.maxsize
        ):  # without its text, which may have thousands of digits
            raise ValueError(
                f"{callable_name}({option}=...) is at most {sys.maxsize:,}, got one of {number.bit_length():,} bits"
            )
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"{callable_name}({option}={number!r}) is a whole number, at least {least}")


def check_seconds(
    callable_name: str, *, least: float | None = None, longest: float = math.inf, **options: object
) -> None:
    """Raise ValueError or TypeError for an option that is not a finite number of seconds in its range.

    Without `least`, the number has to be more than 0.
    """
    range_text = "more than 0" if least is None else f"at least {least:g}"
    range_text += "" if longest == math.inf else f" and at most {longest:g}"
    for option, seconds in options.items():
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise TypeError(f"{callable_name}({option}={seconds!r}) is a number of seconds")
        is_enough = seconds > 0 if least is None else seconds >= least
        if not is_enough or seconds > longest or seconds == math.inf:
            raise ValueError(f"{callable_name}({option}={seconds!r}) is a number of seconds, {range_text}")


def check_environment(title: str, value: object) -> dict[str, str]:
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
