"""Processes that a command has started, with their descendants; read from /proc, in a worker that adopts orphans."""

import os
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def descendants() -> set[int]:
    """Return all living processes below this one; empty if /proc cannot be read."""
    try:
        parents = {int(one.name): _living_parent(one) for one in _PROC.iterdir() if one.name.isdigit()}
    except OSError:
        return set()
    below: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        if parent is not None:
            below.setdefault(parent, []).append(pid)
    found: set[int] = set()
    due = [os.getpid()]
    while due:
        fresh = [pid for pid in below.get(due.pop(), []) if pid not in found]
        found.update(fresh)
        due += fresh
    return found


def _living_parent(process: Path) -> int | None:
    try:
        state, parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except OSError:
        return None
    # A zombie has no children any more; it only waits for its parent to read its exit code.
    return None if state in "ZX" else int(parent)


def signal_all(group: int | None, number: int) -> int:
    """Signal all descendants of this process, and a process group; return their number.

    The group is for systems where /proc cannot be read. It must belong to a process that was not reaped yet.
    """
    # A process that was forking may be missed; the next call finds it, because orphans become children of this process.
    found = descendants()
    with suppress(ProcessLookupError, PermissionError):
        if group is not None:
            os.killpg(group, number)
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return len(found)
