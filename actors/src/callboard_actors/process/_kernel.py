"""What is asked of the kernel: limits, and who is told when a parent dies, and what a process takes."""

import os
import resource
from pathlib import Path
from signal import Signals

from callboard_actors.process._libc import prctl

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def signal_when_parent_dies(number: Signals) -> None:
    """Have the kernel send a signal to this process when the thread that made it ends."""
    prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent dies."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def resident(pid: int) -> int:
    """Bytes of a process that are in memory, what it shares included; 0 if it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(pages) * resource.getpagesize()


def children() -> set[int]:
    """The children of this process, ended ones included; for a process of one thread."""
    return children_of(os.getpid())


def children_of(parent: int) -> set[int]:
    """The children of a process of one thread, ended ones included; none if it has ended itself."""
    try:
        return {int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()}
    except ProcessLookupError:
        return set()
    except FileNotFoundError:
        return _children_by_search(parent)  # not every kernel has the file


def _children_by_search(parent: int) -> set[int]:
    entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {int(entry.name) for entry in entries if _parent_of(entry) == parent}


def _parent_of(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def limit_memory(size: int) -> None:
    """Refuse this process more address space than so many bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def limit_files(count: int) -> None:
    """Refuse this process more than so many open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def leave_no_core() -> None:
    """A crash of a big process would write it all to disk before it ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def limit_processor_time(seconds: int, *, for_good: bool) -> None:
    """Have this process killed by SIGXCPU when it has used so many more seconds, rounded up.

    `for_good` is for one that might ignore the signal, or lift the limit: a second later it is killed by SIGKILL.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + 1 + seconds
    hard = most + 1 if for_good else resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))
