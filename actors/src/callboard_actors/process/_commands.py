"""Protocol between pool and zygote: fixed-size commands to the zygote, and its fixed-size reports.

Commands have one size because they are received together with file descriptors. Only the report FAILED is followed by a
text.
"""

import struct
from enum import IntEnum
from typing import Final

COMMAND: Final = struct.Struct("!BQd")
"""Command, worker number, grace in seconds."""
GIVEN: Final = 3
"""Number of file descriptors sent with FORK and SEAT: socket, output pipe, begun counter."""


class Command(IntEnum):
    """Command of the pool to the zygote."""

    FORK = 1
    """Start a worker that serves one call after another. Carries `GIVEN` file descriptors."""
    SEAT = 2
    """Start a dedicated worker: one owner, one event loop, concurrent calls. Carries the same descriptors."""
    END = 3
    """Send SIGTERM to a worker and its children, and SIGKILL after the grace."""


REPORT: Final = struct.Struct("!BQq")
"""Report, worker number (for LOADING: index of the module), value.

The value is the process id, the exit code, the error number or the length of the text that follows.
"""


class Report(IntEnum):
    """Report of the zygote to the pool."""

    LOADING = 1
    """Begins to load the wanted module with this index. If the process then ends, this module is to blame."""
    READY = 2
    """The modules of forked workers are loaded; commands are accepted."""
    FAILED = 3
    """The process cannot start; a text with the reason follows."""
    FORKED = 4
    """A worker has started; the value is its process id."""
    UNFORKED = 5
    """A worker could not be started; the value is the `errno`."""
    ENDED = 6
    """A worker and its children have ended; the value is its exit code."""
