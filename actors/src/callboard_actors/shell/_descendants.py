"""The processes that a command has started, and theirs; read from /proc, in a worker that adopts orphans."""

import os
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def descendants() -> set[int]:
    """All processes below this one that have not ended; empty where /proc may not be read."""
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
    # One that has ended has no children any more, but somebody may not have asked for its exit code yet.
    return None if state in "ZX" else int(parent)


def signal_all(group: int | None, number: int) -> int:
    """Signal all that descend from here, and a process group; says how many there were.

    The group is for where /proc cannot be read; it is that of a process that nobody has asked for its exit code.
    """
    # One that is missed because it was forking is seen at the next look: orphans come here.
    found = descendants()
    with suppress(ProcessLookupError, PermissionError):
        if group is not None:
            os.killpg(group, number)
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return len(found)
