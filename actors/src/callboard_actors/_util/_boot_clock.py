"""Clock for leases: it keeps counting while the process is stopped or the machine sleeps."""

import time

# Linux only. Elsewhere the monotonic clock is the best there is; it may stand still while the machine sleeps.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Return the seconds of a clock that keeps counting while the process is stopped or the machine sleeps."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
