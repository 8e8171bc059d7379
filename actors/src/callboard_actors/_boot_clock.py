"""Clock by which leases are counted: it goes on while the process, or the machine, stands still."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Return seconds on a clock that goes on while the process, or the machine, stands still."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
