"""Requests to the operating system: limits, signals at a parent's death, descendants, memory and file descriptors.

Linux offers more than POSIX. On other systems each function does as much as possible, and its docstring says how much.
Options without any replacement are rejected by `PoolOptions`.
"""

import fcntl
import os
import resource
import sys
from array import array
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from signal import SIGKILL, Signals
from socket import CMSG_LEN, MSG_WAITALL, SCM_RIGHTS, SOL_SOCKET, socket

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

FORKS = sys.platform == "linux"
"""`True` if a process with many modules can be forked safely, and the fork is told of its parent's death.

On macOS, system frameworks crash in such forks. Other systems were not tested.
"""
LIMITS_MEMORY = sys.platform != "darwin"
"""`True` if the system enforces a limit of address space; macOS may accept such a limit, but ignores it."""


def signal_when_parent_dies(signal_number: Signals) -> bool:
    """Let the kernel send this process a signal when its parent thread ends; return `False` if unsupported."""
    if sys.platform == "linux":
        from callboard_actors._engine._libc import prctl

        prctl(_PR_SET_PDEATHSIG, signal_number)
    return sys.platform == "linux"


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, instead of init. Linux only; otherwise do nothing."""
    if sys.platform == "linux":
        from callboard_actors._engine._libc import prctl

        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def make_shared_file(size_bytes: int) -> int:
    """Create an unnamed file with one integer of `size_bytes`, to be shared with a worker; return its descriptor."""
    with ExitStack() as on_error:
        if sys.platform == "linux":
            fd = os.memfd_create("callboard-begun", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            from tempfile import TemporaryFile

            with TemporaryFile() as file:
                fd = os.dup(file.fileno())
        on_error.callback(os.close, fd)
        # A worker shares this file. Unsealed, the worker could make it grow without any limit, since RLIMIT_AS does not
        # count the file's memory.
        os.ftruncate(fd, size_bytes)
        if sys.platform == "linux":
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        on_error.pop_all()  # from here on, the caller closes the file
    return fd


def receive_with_files(sock: socket, size_bytes: int, max_files: int) -> tuple[bytes, list[int]]:
    """Receive `size_bytes`, and at most `max_files` file descriptors; fewer bytes if the other end has closed."""
    flags = MSG_WAITALL
    if sys.platform == "linux":
        from socket import MSG_CMSG_CLOEXEC

        flags |= MSG_CMSG_CLOEXEC
    fds = array("i")
    message, ancillary, _, _ = sock.recvmsg(size_bytes, CMSG_LEN(max_files * fds.itemsize), flags)
    for level, kind, content in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            # Whole descriptors only: the kernel may have cut the content.
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    # Systems without MSG_CMSG_CLOEXEC: a fork and exec in another thread, before this line, would inherit them.
    for fd in fds:
        os.set_inheritable(fd, False)
    return message, list(fds)


def signal_group(leader_pid: int, signal_number: Signals) -> None:
    """Send a signal to a process and to the process group that it leads; ignore processes that are gone."""
    # The caller has not reaped the process, or its id might be that of another process by now.
    # Also the process alone: a new worker may not have created its group yet.
    for send_signal in (os.killpg, os.kill):
        # The process leads no group yet, because it was just forked, or the remaining members are another user's.
        with suppress(ProcessLookupError, PermissionError):
            send_signal(leader_pid, signal_number)


def reap_child(leader_pids: Collection[int]) -> tuple[int, int] | None:
    """Reap an ended child; return its id and wait status, `None` without one. If it leads a group, kill the group."""
    with suppress(ChildProcessError):
        if sys.platform == "linux":
            # WNOWAIT leaves the child a zombie, which keeps its id, and that of its process group, reserved until
            # `waitpid`.
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if child is None:
                return None
            if child.si_pid in leader_pids:
                signal_group(child.si_pid, SIGKILL)
            return child.si_pid, os.waitpid(child.si_pid, 0)[1]
        else:
            # Here the id is free before the group is killed. It may be reused if the group is empty and a process
            # starts in the same instant.
            for pid in leader_pids:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    signal_group(pid, SIGKILL)
                    return pid, status
    return None


def child_pids() -> set[int]:
    """Return the process ids of this single-threaded process's children, zombies included; empty if unknown."""
    if sys.platform != "linux":
        return set()
    own_pid = os.getpid()
    try:
        return {int(pid) for pid in Path(f"/proc/{own_pid}/task/{own_pid}/children").read_text().split()}
    except FileNotFoundError:
        return _search_child_pids(own_pid)  # the file depends on the kernel's configuration


def _search_child_pids(parent_pid: int) -> set[int]:
    process_folders = (folder for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return {int(folder.name) for folder in process_folders if _parent_pid_of(folder) == parent_pid}


def descendant_pids(ancestor_pid: int) -> set[int]:
    """Return the process ids of all living descendants of a process; empty if the system cannot tell."""
    if sys.platform != "linux":
        return set()
    children_by_parent: dict[int, list[int]] = {}
    try:
        for entry in Path("/proc").iterdir():
            # A zombie has no children any more; it only waits for its parent to read its exit code.
            if entry.name.isdigit() and (parent_pid := _parent_pid_of(entry, include_zombies=False)) is not None:
                children_by_parent.setdefault(parent_pid, []).append(int(entry.name))
    except OSError:
        return set()
    descendants, unvisited = set[int](), [ancestor_pid]
    while unvisited:
        new_pids = [pid for pid in children_by_parent.get(unvisited.pop(), []) if pid not in descendants]
        descendants.update(new_pids)
        unvisited += new_pids
    return descendants


def _parent_pid_of(process_folder: Path, *, include_zombies: bool = True) -> int | None:
    try:
        # The fields after the process name; the name in parentheses may contain spaces and parentheses.
        state, parent_pid = (process_folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except OSError:  # it has ended, or it is another user's and hidden
        return None
    is_zombie = state in "ZX"  # ended and not reaped yet, or about to disappear
    return None if is_zombie and not include_zombies else int(parent_pid)


def limit_resources(*, memory_bytes: int | None, max_files: int | None, is_irrevocable: bool) -> None:
    """Limit address space (in bytes) and open files of this process, and disable its core dumps."""
    # With a hard limit of 0, the process cannot enable core dumps again.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0 if is_irrevocable else resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if memory_bytes is not None:
        # POSIX has this limit, but not each system.
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    if max_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))


def limit_processor_time(seconds: int, *, is_irrevocable: bool) -> None:
    """Let the kernel send this process SIGXCPU after `seconds` more of processor time, rounded up."""
    # Code that is not trusted could ignore the signal or raise the limit: SIGKILL follows a second later.
    # The limit counts from the start of the process; earlier calls of this worker have used a part.
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft_limit = int(usage.ru_utime + usage.ru_stime) + 1 + seconds
    # A hard limit cannot be raised again, so it is lowered only for workers that serve one call.
    hard_limit = soft_limit + 1 if is_irrevocable else resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (soft_limit, hard_limit))
