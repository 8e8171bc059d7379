"""Warnings about durations that were probably given in the wrong unit, or can never take effect."""

from callboard._util._callers import warn_user
from callboard.exceptions import CallboardWarning

_SUSPECT = 5000
"""Smallest duration in seconds to warn about: a larger multiple of 1000 is more likely a number of milliseconds."""
_HOUR = 3600


def warn_about_milliseconds(name: str, seconds: float | None) -> None:
    """Warn of a duration that looks like milliseconds: a multiple of 1000 that is no multiple of an hour."""
    if seconds is None or seconds < _SUSPECT or seconds % 1000 or seconds % _HOUR == 0:
        return
    warn_user(
        f"{name} is a number of seconds, and {seconds:g} s are {seconds / _HOUR:.1f} hours; for {seconds:g} ms write "
        f"{seconds / 1000:g}",
        CallboardWarning,
    )


def warn_about_unreachable_timeout(name: str, timeout: float | None, budget: float | None) -> None:
    """Warn of an attempt timeout longer than the budget of its call: it can never take effect."""
    if timeout is None or budget is None or timeout <= budget:
        return
    warn_user(
        f"{name}: an attempt may take timeout={timeout:g} s, but the whole call has budget={budget:g} s, so the "
        "timeout is never over; give the call a larger budget, or the attempt a shorter timeout",
        CallboardWarning,
    )
