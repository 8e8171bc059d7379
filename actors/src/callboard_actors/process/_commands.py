"""What goes over the socket between pool and zygote: commands to it, and its reports.

A zygote and the new interpreters that it starts speak to each other in the same way.

Commands have one size, because file descriptors come with them; reports have one size, too, but for the one that it
cannot start, which a text follows.
"""

import struct
from enum import IntEnum
from typing import Final

COMMAND: Final = struct.Struct("!BQd")
"""What to do, with which worker, how long its grace is."""
GIVEN: Final = 3
"""Files that come with the command to have a worker."""


class Command(IntEnum):
    """What the pool wants of the zygote."""

    FORK = 1
    """Have a new worker; its socket, its output and its notebook come along."""
    SEAT = 2
    """Have a new worker with an event loop, for one owner; with the same things."""
    END = 3
    """Terminate a worker and all it has started; kill them when the grace is over."""


REPORT: Final = struct.Struct("!BQq")
"""What happened, to which worker, and its process id, exit code, error number or length of a text."""


class Report(IntEnum):
    """What the zygote says, or a new interpreter to it."""

    LOADING = 1
    """It tries to load a module, by its place among those wanted; if it ends there, that one cannot be."""
    READY = 2
    """It has loaded what it should, and waits for commands."""
    FAILED = 3
    """It cannot begin; why is in the text that follows."""
    FORKED = 4
    """A worker lives, and has a process id."""
    UNFORKED = 5
    """A worker could not be had, with the error number of the system."""
    ENDED = 6
    """A worker has ended, with its exit code, and so has all that it had started."""
    TAKEN = 7
    """A new interpreter has the files that come with the command to be a worker."""
