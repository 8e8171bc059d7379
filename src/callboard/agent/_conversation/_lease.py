"""Who runs a thread: one run at a time, whichever process it is in.

A holder is written as an entry. Savers keep the first of two writes with one id, so of two runs that start at once
one finds the other's entry in the place of its own, and is told. A holder that died is passed over: on this machine
that is known at once, of another machine when its time is over, which it moves on while it runs.
"""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from callboard._calls._observers import current_mark

LEASE = 60.0
"""Seconds after which the holder on another machine counts as dead, unless it has been heard of."""

_here: set[str] = set()
"""The runs of this process that hold a thread."""


def new_holder() -> dict[str, Any]:
    """The entry by which a run of this process holds its thread."""
    token = uuid4().hex
    _here.add(token)
    pid = os.getpid()
    host = {"host": socket.gethostname(), "boot": _boot()}
    mark = current_mark()
    marked = {} if mark is None else {"mark": mark}
    return {"token": token, **host, "pid": pid, "born": _stat(pid)[1], "until": _until(), **marked}


def prolonged(holder: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a holder that says that it is still alive."""
    return {**holder, "until": _until()}


def release(holder: Mapping[str, Any]) -> None:
    """Note that a run of this process has ended, so that its thread is free here."""
    _here.discard(holder["token"])


def is_alive(holder: Mapping[str, Any]) -> bool:
    """Whether the run may still be going on."""
    if (holder["host"], holder["boot"]) != (socket.gethostname(), _boot()):
        return bool(holder["until"] > time.time())
    if holder["pid"] == os.getpid():
        return holder["token"] in _here
    return _exists(holder["pid"], holder.get("born", ""))


def described(holder: Mapping[str, Any]) -> str:
    """The process of a holder, in words."""
    return f"process {holder['pid']} on {holder['host']}"


def _until() -> float:
    return time.time() + LEASE


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
