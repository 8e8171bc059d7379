"""What is asked of the system: limits, who is told when a parent dies, what a process has started, and what it takes.

This is where Linux has more than others, which have what POSIX says: there each function does what can be done, and
its docstring says what that is. What has no replacement at all is refused by `Terms`.
"""

import fcntl
import os
import resource
import sys
from array import array
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from signal import Signals
from socket import CMSG_LEN, SCM_RIGHTS, SOL_SOCKET, socket
from typing import Literal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

FORKS = sys.platform == "linux"
"""Whether a copy of a process that has loaded much is sound, and is told of its parent's death.

On macOS, frameworks of the system crash in such copies; elsewhere it was not tried.
"""
TELLS_SIZE = sys.platform == "linux"
"""Whether the memory of another process can be asked for."""
LIMITS_MEMORY = sys.platform != "darwin"
"""Whether a limit of address space is kept; macOS takes it, at best, and forgets it."""


def best_start() -> Literal["fork", "spawn"]:
    """How workers come to be where nobody has said it."""
    return "fork" if FORKS else "spawn"


def signal_when_parent_dies(number: Signals) -> bool:
    """Have the kernel send a signal to this process when the thread that made it ends; false where it will not."""
    if sys.platform == "linux":
        from callboard_actors.process._libc import prctl

        prctl(_PR_SET_PDEATHSIG, number)
    return sys.platform == "linux"


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent dies; elsewhere init does."""
    if sys.platform == "linux":
        from callboard_actors.process._libc import prctl

        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def resident(pid: int) -> int:
    """Bytes of a process that are in memory, what it shares included; 0 if it has ended. For Linux."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(pages) * resource.getpagesize()


def shared_number(size: int) -> int:
    """Open a file of so many bytes without a name; on Linux its size cannot be changed by whoever gets it."""
    with ExitStack() as opened:
        if sys.platform == "linux":
            fd = os.memfd_create("callboard-begun", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            from tempfile import TemporaryFile

            with TemporaryFile() as file:
                fd = os.dup(file.fileno())
        opened.callback(os.close, fd)
        # Of one size, because no limit of the worker's would count what it holds.
        os.ftruncate(fd, size)
        if sys.platform == "linux":
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        opened.pop_all()
    return fd


def receive_with_files(sock: socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive so many bytes and files that come with them, which programs that are started do not inherit."""
    flags = 0
    if sys.platform == "linux":
        from socket import MSG_CMSG_CLOEXEC

        flags = MSG_CMSG_CLOEXEC
    fds = array("i")
    data, ancillary, _, _ = sock.recvmsg(size, CMSG_LEN(most * fds.itemsize), flags)
    for level, kind, content in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, list(fds)


def signal_group(leader: int, number: Signals) -> None:
    """Signal a process and the group that it leads; nobody has asked for its status yet, or only just now."""
    for send in (os.killpg, os.kill):
        try:
            send(leader, number)
        except ProcessLookupError:
            pass  # it has just been forked, and has no group of its own yet
        except PermissionError:
            pass  # all that is left of the group belongs to somebody else


def bury(among: Iterable[int], first: Callable[[int], None]) -> tuple[int, int] | None:
    """Ask for the status of a child that has ended, one of `among` or, on Linux, any; `None` if there is none.

    `first` is called with its number, which is not free as yet: on Linux for sure, elsewhere if its process group has
    somebody left, or if no process has begun in the same instant.
    """
    try:
        if sys.platform == "linux":
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return None
            first(found.si_pid)
            return found.si_pid, os.waitpid(found.si_pid, 0)[1]
        else:
            for pid in among:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    first(pid)
                    return pid, status
    except ChildProcessError:
        pass
    return None


def children() -> set[int]:
    """The children of this process, ended ones included; for a process of one thread. None where nobody can tell."""
    return children_of(os.getpid()) if sys.platform == "linux" else set()


def children_of(parent: int) -> set[int]:
    """The children of a process of one thread, ended ones included; none if it has ended itself. For Linux."""
    try:
        return {int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()}
    except ProcessLookupError:
        return set()
    except FileNotFoundError:
        return _children_by_search(parent)  # not every kernel has the file


def _children_by_search(parent: int) -> set[int]:
    entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {int(entry.name) for entry in entries if _parent_of(entry) == parent}


def descendants_of(ancestor: int) -> set[int]:
    """Return all processes below one, ended ones included; none where nobody can tell."""
    return _descendants_by_search(ancestor) if sys.platform == "linux" else set()


def _descendants_by_search(ancestor: int) -> set[int]:
    parents = {int(entry.name): _parent_of(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found, due = set[int](), [ancestor]
    while due:
        above = due.pop()
        below = {pid for pid, parent in parents.items() if parent == above} - found
        found |= below
        due += below
    return found


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


def leave_no_core(*, for_good: bool) -> None:
    """Have crashes of this process write no memory to disk; `for_good` if what runs in it could raise the limit."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0 if for_good else resource.getrlimit(resource.RLIMIT_CORE)[1]))


def limit_processor_time(seconds: int, *, for_good: bool) -> None:
    """Have this process killed by SIGXCPU when it has used so many more seconds, rounded up.

    `for_good` is for one that might ignore the signal, or lift the limit: a second later it is killed by SIGKILL.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + 1 + seconds
    hard = most + 1 if for_good else resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))
