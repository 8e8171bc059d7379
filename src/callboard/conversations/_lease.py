"""Lease of a thread of conversation: at most one run changes a thread at a time, across all processes.

The run that holds a thread writes a holder entry into the journal. Savers keep the first of two writes with one id. If
two runs start at once, one of them reads the other's entry in place of its own, and raises `ThreadBusyError`. A dead
holder is replaced. On this machine, its death is known at once. On another machine, its lease has to expire; a living
holder renews it every third of `LEASE`.

Clocks of machines differ. PostgreSQL has a clock, and leases are then written and compared by that clock alone. Without
one, an expired lease proves nothing. The next run watches the entry for one whole `LEASE` and takes the thread only if
the entry was not renewed. A holder measures its own lease with a clock that includes suspension. If its lease may have
expired, or its two clocks disagree, it reads the database before it writes entries. So a holder that was replaced finds
that out before its entries reach the journal.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from anyio import sleep

from callboard._calls._observers import current_mark
from callboard._loops._forks import after_fork_in_child

_log = logging.getLogger("callboard")

LEASE = 60.0
"""Duration of a lease in seconds; a run on another machine that does not renew its lease in time counts as dead."""
_LOOKS = 6
"""Number of times that another run's holder entry is read again during one `LEASE`, to see whether it changes.

A living holder renews its lease three times in the same time.
"""
_AGES = 86_400.0
"""Largest assumed difference of two machines' clocks, in seconds; a lease that expired longer ago has surely ended."""
# On Linux, `time.monotonic()` stops while the machine is suspended, but leases go on: other machines' clocks do.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
_read_clock: Callable[[int], float] = getattr(time, "clock_gettime", lambda _: time.monotonic())  # missing on Windows
_SEES_PROCESSES = sys.platform != "win32"
"""`False` on Windows, where `os.kill(pid, 0)` does not look a process up: it sends Ctrl-C."""

Now = Callable[[], Awaitable[float | None]]
"""Async function that returns the time of the database in seconds since 1970; `None` if it has no clock."""

# Several event loops of the process may change it; `add` and `discard` of one token are atomic.
_own_tokens: set[str] = set()
"""Tokens of the runs in this process that hold a thread."""


def new_holder(now: float | None = None) -> dict[str, Any]:
    """Return a new holder entry, which a run of this process stores to take a thread; register the entry's token."""
    token = uuid4().hex
    # Before the entry is stored: a run of this process that reads an unknown token takes its holder for dead.
    _own_tokens.add(token)
    pid = os.getpid()
    host = {"host": socket.gethostname(), "boot": _BOOT, "pid_namespace": _PID_NAMESPACE}
    mark = current_mark()
    mark_field = {} if mark is None else {"mark": mark}
    return {"token": token, **host, "pid": pid, "born": _birth(), "until": _until(now), **mark_field}


def renew_holder(holder: Mapping[str, Any], now: float | None = None) -> dict[str, Any]:
    return {**holder, "until": _until(now)}


class OwnLease:
    """Lease of a run in this process, measured by the clocks of this machine."""

    def __init__(self) -> None:
        self.renew(self.read())

    @staticmethod
    def read() -> tuple[float, float]:
        """Read a monotonic clock and the time of day of this machine, and return both in seconds."""
        return time.monotonic() if _BOOT_CLOCK is None else _read_clock(_BOOT_CLOCK), time.time()

    def renew(self, since: tuple[float, float]) -> None:
        """Restart the lease at `since`, the times of both clocks just before the holder entry was written."""
        # Not the time after the write, which can take long: other machines count the lease from before it.
        self._since = since

    @property
    def may_be_over(self) -> bool:
        """`True` if the lease may have expired, so that another run may have taken the thread."""
        (monotonic, wall_time), (monotonic_before, wall_time_before) = self.read(), self._since
        passed, passed_on_wall = monotonic - monotonic_before, wall_time - wall_time_before
        # If the clocks disagree, one was set or the machine was paused. Then neither proves that the lease goes on.
        return passed >= LEASE or abs(passed_on_wall - passed) >= LEASE / 2


async def is_over(holder: Mapping[str, Any], now: Now, current: Callable[[], Awaitable[object]]) -> bool:
    """Return whether the run that holds a thread has ended or lost its lease; this may wait for up to one lease."""
    # The clock of the database decides only about other machines; processes of this machine are looked up by id.
    database_time = await now() if _is_elsewhere(holder) else None
    if database_time is None and _is_elsewhere(holder) and holder["boot"] == _BOOT != "":
        database_time = time.time()  # a container of this machine: both have its one clock
    if is_alive(holder, database_time):
        return False
    if database_time is not None or not _is_elsewhere(holder) or holder["until"] < time.time() - _AGES:
        return True
    _log.warning(
        "%s held a thread, and its lease is over if its clock is right; watching for %g s",
        describe_holder(holder),
        LEASE,
    )
    # Any change means that a run was at work meanwhile: a renewal, another holder, or the holder's regular end.
    for _ in range(_LOOKS):
        await sleep(LEASE / _LOOKS)
        if await current() != holder:
            return False
    return True


def release(holder: Mapping[str, Any]) -> None:
    """Remove the token of a run that has ended, so that other runs of this process may take its thread."""
    _own_tokens.discard(holder["token"])


def _is_elsewhere(holder: Mapping[str, Any]) -> bool:
    """Return whether the process of a holder cannot be looked up on this machine."""
    # It is then on another machine, of an earlier boot of this one, or in another container, where its process id means
    # another process; on Windows, any other process.
    location = (holder["host"], holder["boot"], holder.get("pid_namespace", ""))
    is_here = location == (socket.gethostname(), _BOOT, _PID_NAMESPACE)
    return not (is_here and (_SEES_PROCESSES or holder["pid"] == os.getpid()))


def is_alive(holder: Mapping[str, Any], now: float | None = None) -> bool:
    """Return whether the run that a holder entry names may still be in progress."""
    if _is_elsewhere(holder):
        # `now` is the time of the database's clock; without such a clock, the clock of this machine decides.
        return bool(holder["until"] > (time.time() if now is None else now))
    # The own process id proves nothing about a run: the process outlives its runs.
    if holder["pid"] == os.getpid():
        return holder["token"] in _own_tokens
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process of another user: it exists
        pass
    # A process with another start time is a later one, to which the system gave the same id.
    state, start_time = _stat(holder["pid"])
    # "Z", a zombie: it has ended, unread by its parent.
    return state != "Z" and start_time in ("", holder.get("born", ""))


def describe_holder(holder: Mapping[str, Any] | None) -> str:
    """Return a text for errors that names the process of a holder; "another run" for an unknown holder."""
    return "another run" if holder is None else f"process {holder['pid']} on {holder['host']}"


def _until(now: float | None) -> float:
    return (time.time() if now is None else now) + LEASE


def _stat(pid: int) -> tuple[str, str]:
    """Return the state of a process and its start time in ticks, as texts; empty texts if the system has neither."""
    try:
        # The second field, the command, is in parentheses and may itself contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""


def _read(fact: Callable[[], str]) -> str:
    """Return a fact about the system, or an empty text if the system does not have it."""
    try:
        return fact()
    except OSError:
        return ""


@cache
def _birth() -> str:
    """Return the start time of this process in ticks, as a text."""
    return _stat(os.getpid())[1]


# Read when the module is imported, because a run that reads a file blocks its event loop.
_BOOT = _read(lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip())
"""Id of the current boot: process ids of an earlier boot mean nothing."""
_PID_NAMESPACE = _read(lambda: str(Path("/proc/self/ns/pid").readlink()))
"""Namespace of this process's id: containers may share a host name, and each has a process 1."""
_birth()
after_fork_in_child(_birth.cache_clear)
