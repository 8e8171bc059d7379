"""Who runs a thread: one run at a time, whichever process it is in.

A holder is written as an entry. Savers keep the first of two writes with one id, so of two runs that start at once
one finds the other's entry in the place of its own, and is told. A holder that died is passed over: on this machine
that is known at once, of another machine when its lease is over, which it renews while it runs.

Clocks of machines differ. Where the database has a clock (PostgreSQL), leases are written and read by that one. Where
it has none, an end that has passed on the clock of this machine proves nothing: the entry is watched for a whole lease,
and a holder that renews it meanwhile has the thread. A holder counts its own lease by a clock that goes on while it
stands still, and looks into the database before it writes anything when that lease may be over, or when the clocks of
its machine have moved apart (one was set, or the machine was paused). So when a holder was replaced, its entry had not
been renewed for a lease, and the holder finds that out instead of writing.
"""

import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from anyio import sleep

from callboard._calls._observers import current_mark

_log = logging.getLogger("callboard")

LEASE = 60.0
"""Seconds after which the holder on another machine counts as dead, unless it has been heard of."""
_LOOKS = 6
"""How often a holder is looked for while its entry is watched for a lease; it renews that three times."""
_AGES = 86_400.0
"""Seconds by which no two clocks differ: a lease that ended before that is over."""
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
_read_clock: Callable[[int], float] = getattr(time, "clock_gettime", lambda _: time.monotonic())  # Windows has none

Now = Callable[[], Awaitable[float | None]]
"""Reads the clock of the database, in seconds since 1970; `None` where it has none."""

_here: set[str] = set()
"""The runs of this process that hold a thread."""


def new_holder(now: float | None = None) -> dict[str, Any]:
    """Return the entry by which a run of this process holds its thread, given the clock of the database, if any."""
    token = uuid4().hex
    _here.add(token)
    pid = os.getpid()
    host = {"host": socket.gethostname(), "boot": _boot()}
    mark = current_mark()
    marked = {} if mark is None else {"mark": mark}
    return {"token": token, **host, "pid": pid, "born": _stat(pid)[1], "until": _until(now), **marked}


def prolonged(holder: Mapping[str, Any], now: float | None = None) -> dict[str, Any]:
    """Return the entry by which a holder renews its lease."""
    return {**holder, "until": _until(now)}


class OwnLease:
    """Lease of a run of this process, on the clocks of this machine."""

    def __init__(self) -> None:
        self.renew(self.read())

    @staticmethod
    def read() -> tuple[float, float]:
        """Return what both clocks show: one that goes on while the machine sleeps, and the time of day."""
        return time.monotonic() if _BOOT_CLOCK is None else _read_clock(_BOOT_CLOCK), time.time()

    def renew(self, since: tuple[float, float]) -> None:
        """Note that an entry was stored, of which the writing began when the clocks showed this."""
        self._since = since

    @property
    def may_be_over(self) -> bool:
        """Whether another run may have the thread by now."""
        passed, shown = (now - before for now, before in zip(self.read(), self._since, strict=True))
        return passed >= LEASE or abs(shown - passed) >= LEASE / 2


async def is_over(holder: Mapping[str, Any], now: Now, current: Callable[[], Awaitable[object]]) -> bool:
    """Return whether a run has ended that holds a thread; may watch it for a lease.

    Args:
        holder: its entry.
        now: the clock of the database.
        current: reads the entry anew.
    """
    there = await now() if _is_elsewhere(holder) else None
    if is_alive(holder, there):
        return False
    if there is not None or not _is_elsewhere(holder) or holder["until"] < time.time() - _AGES:
        return True
    _log.warning(
        "%s held a thread, and its lease is over if its clock is right; watching for %g s", described(holder), LEASE
    )
    for _ in range(_LOOKS):
        await sleep(LEASE / _LOOKS)
        if await current() != holder:
            return False
    return True


def release(holder: Mapping[str, Any]) -> None:
    """Note that a run of this process has ended, so that its thread is free here."""
    _here.discard(holder["token"])


def _is_elsewhere(holder: Mapping[str, Any]) -> bool:
    """Whether nobody can look here whether its process lives."""
    return (holder["host"], holder["boot"]) != (socket.gethostname(), _boot())


def is_alive(holder: Mapping[str, Any], now: float | None = None) -> bool:
    """Return whether the run may still be going on, by the clock of the database or, without one, by this machine's."""
    if _is_elsewhere(holder):
        return bool(holder["until"] > (time.time() if now is None else now))
    if holder["pid"] == os.getpid():
        return holder["token"] in _here
    return _exists(holder["pid"], holder.get("born", ""))


def described(holder: Mapping[str, Any] | None) -> str:
    """Return the process of a holder, in words, for errors."""
    if holder is None:
        return "another run"
    return f"process {holder['pid']} on {holder['host']}"


def _until(now: float | None) -> float:
    return (time.time() if now is None else now) + LEASE


def _exists(pid: int, born: str) -> bool:
    """Whether there is this very process; its number may have been given to another one since."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    state, began = _stat(pid)
    return state != "Z" and began in ("", born)  # a zombie has ended, and its parent has not looked yet


def _stat(pid: int) -> tuple[str, str]:
    """The state of a process and when it began, in ticks; two empty strings where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""


def _boot() -> str:
    """An id of this start of the machine: process ids mean something until the next start only."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
