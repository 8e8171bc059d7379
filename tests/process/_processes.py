"""Helpers that list processes. They read /proc, so that zombies count, too."""

import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio  # and no `tests.helpers`: programs on a simulated system with only POSIX import this module

from callboard.extend import Body
from callboard_actors._engine import _kernel
from callboard_actors.process import Confine, Processes

WAIT = 20
"""Timeout in seconds for events that must happen eventually."""

ROOT = Path(__file__).parents[2]
NO_LINUX = Path(__file__).with_name("_no_linux")
"""Folder with a module that simulates a system with only POSIX."""


@asynccontextmanager
async def open_pool(**options: Any) -> AsyncIterator[Processes]:
    """Open a pool of one worker, unless told otherwise, for at most `WAIT` seconds."""
    with anyio.fail_after(WAIT):
        async with Processes(**{"workers": 1, **options}) as pool:
            yield pool


def body_of(fn: Callable[..., Any], *args: Any, grace: float | None = None) -> Body:
    """Return a call of a function, with its name as the title."""
    return Body(fn=fn, args=args, title=fn.__name__, grace=grace)


def confine_here(**options: Any) -> Confine:
    """Return a confinement in which workers can load the modules of these tests."""
    return Confine(modules=[ROOT], **options)


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def parent_of(pid: int) -> int | None:
    """Return the parent's process id, or `None` if there is no such process."""
    stat = _stat(pid)
    return None if stat is None else int(stat[1])


def _state_of(pid: int) -> str | None:
    stat = _stat(pid)
    return None if stat is None else stat[0]


def descendants(pid: int) -> set[int]:
    """Return all descendants of a process, zombies included, except those of a database server."""
    parents = {int(entry.name): parent_of(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    pids: set[int] = set()
    due = [pid]
    while due:
        above = due.pop()
        below = {entry for entry, parent in parents.items() if parent == above and not _is_of_database(entry)} - pids
        pids |= below
        due += below
    return pids


def _is_of_database(pid: int) -> bool:
    """Return whether the process belongs to a PostgreSQL server that another test of this process has started."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"
    except OSError:
        return False  # the process has ended


def alive(pids: Iterable[int]) -> set[int]:
    return {pid for pid in pids if parent_of(pid) is not None}


def running(pids: Iterable[int]) -> set[int]:
    """Return the processes that have not ended. Zombies do not count, because init may reap them late."""
    return {pid for pid in pids if _state_of(pid) not in (None, "Z")}


def open_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def wait_for_starts(folder: Path, count: int = 1) -> set[int]:
    """Wait until so many functions have reported that they run; return their process ids."""
    with anyio.fail_after(WAIT):
        while len(pids := {int(path.name) for path in folder.iterdir()}) < count:
            await anyio.sleep(0.001)
    return pids


def below_us() -> set[int]:
    """Return our direct children that are not workers: zygotes."""
    return {pid for pid in descendants(os.getpid()) if parent_of(pid) == os.getpid()}


def zygote_of(pool: Processes) -> int:
    [zygote] = {parent_of(pid) for pid in pool.pids}
    assert zygote is not None
    return zygote


async def only_workers_beside(pool: Processes, helpers: set[int]) -> None:
    """Wait until only workers are left; of new interpreters there is one more than the pool has workers."""
    if _kernel.FORKS:
        assert descendants(os.getpid()) - helpers == set(pool.pids)
        return
    with anyio.fail_after(WAIT):
        while len(pool.pids) <= pool._options.workers or descendants(zygote_of(pool)) != set(pool.pids):
            await anyio.sleep(0.001)
