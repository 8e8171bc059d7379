"""Enforcement of `Confine` (permissions of workers): the parent process opens paths, each worker restricts itself."""

import os
import resource
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from callboard_actors._engine._libc import syscall
from callboard_actors.process._confinement import _landlock, _seccomp
from callboard_actors.process._confinement._confine import CannotConfineError, Confine
from callboard_actors.process._confinement._readable import always_readable

_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES: Final = 0x20080522
"""Version of the structures that `capset` reads: the constant _LINUX_CAPABILITY_VERSION_3."""
_MAX_FD: Final = 2**31 - 1
_DONE: Final = b"done"
_EXTRA_TASKS: Final = 256
"""Maximum number of threads and processes that a worker's user may have in addition to those that exist already.

The kernel does not enforce this limit for root.
"""


class Confinement:
    """Restrictions of all workers of a zygote (parent process): prepared once, and applied by each worker to itself.

    Paths are opened here, before any worker runs: a worker with write access could later replace a path by a link.
    """

    def __init__(self, confine: Confine) -> None:
        self._confine = confine
        self._machine = os.uname().machine
        if self._machine not in _seccomp.MACHINES or sys.maxsize < 2**32:
            machines = " and ".join(_seccomp.MACHINES)
            raise CannotConfineError(
                f"confine= is for 64 bit programs on {machines} as yet, and this is {self._machine}"
            )
        self._landlock_version = _landlock.version()
        if reason := reason_not_enforceable(confine, self._landlock_version):
            raise CannotConfineError(reason)
        # The descriptors stay open in the zygote for its lifetime; workers inherit them, and close them in
        # `confine_this_process`.
        execute_right = _landlock.EXECUTE if confine.processes else 0
        readable = always_readable(confine.modules, network=confine.network)
        self._path_rules = [_landlock.open_rule(path, _landlock.READ | execute_right) for path in readable]
        self._path_rules.append(_landlock.open_rule("/dev/null", _landlock.WRITE))
        granted_paths = (("read", confine.read, _landlock.READ), ("write", confine.write, _landlock.WRITE))
        for name, paths, rights in granted_paths:
            for path in map(str, paths):
                try:
                    self._path_rules.append(_landlock.open_rule(path, rights | execute_right))
                except OSError as error:
                    raise CannotConfineError(f"{name} has {path!r}, which cannot be had: {error}") from error
        _seccomp.encode_filter(self._machine, 0, self._allowed_calls())  # caches the common part, which forks share

    def rehearse(self) -> None:
        """Confine a forked test process; raise `CannotConfineError` if the kernel refuses any of the restrictions."""
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                self.confine_this_process([write_fd])
                os.write(write_fd, _DONE)
            except BaseException as error:  # this process ends here in any case
                os.write(write_fd, repr(error).encode())
            finally:
                os._exit(0)  # the child must not run the zygote's code
        os.close(write_fd)
        with os.fdopen(read_fd, "rb") as stream:
            child_answer = stream.read()
        os.waitpid(pid, 0)
        if child_answer != _DONE:
            reason = child_answer.decode(errors="replace") or "it ended without a word"
            raise CannotConfineError(f"this system cannot confine a worker: {reason}")

    def confine_this_process(self, kept_fds: Iterable[int]) -> None:
        """Confine this process permanently, and close its open files except `kept_fds`, stdin, stdout and stderr."""
        # The kernel should kill an untrusted worker first when memory runs out. This protects other processes and is
        # no part of the confinement, so a failure is ignored.
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        # Against fork bombs. The limit counts all tasks of the user, so the existing ones are added.
        if os.geteuid() != 0:
            max_tasks = _EXTRA_TASKS
            for entry in Path("/proc").iterdir():
                with suppress(OSError):  # a process that has ended meanwhile
                    if entry.name.isdigit() and entry.stat().st_uid == os.geteuid():
                        # Field 20 of /proc/PID/stat is the number of threads. The name in parentheses may have spaces.
                        max_tasks += int((entry / "stat").read_text().rpartition(")")[2].split()[17])
            hard_limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
            max_tasks = max_tasks if hard_limit == resource.RLIM_INFINITY else min(max_tasks, hard_limit)
            resource.setrlimit(resource.RLIMIT_NPROC, (max_tasks, max_tasks))
        # The order matters. The kernel requires no_new_privs before Landlock and seccomp. Landlock needs the open files
        # of its rules, so files are closed after it. The filter comes last, because it refuses the system calls of the
        # steps before it.
        _seccomp.take_no_new_privileges()
        # Drop all capabilities: root keeps its ownership of files, and loses every other privilege.
        syscall("capset", _CAPSET[self._machine], struct.pack("=Ii", _CAPABILITIES, 0), bytes(24))
        _landlock.restrict_process(self._path_rules, self._landlock_version, network=self._confine.network)
        # Close the gaps between these descriptors: one system call each, however many files may be open.
        gap_begin = 0
        for fd in [*sorted({0, 1, 2, *kept_fds}), _MAX_FD]:
            if gap_begin < fd:  # `closerange(0, 0)` would close everything
                os.closerange(gap_begin, fd)
            gap_begin = fd + 1
        _seccomp.install_filter(_seccomp.encode_filter(self._machine, os.getpid(), self._allowed_calls()))

    def _allowed_calls(self) -> _seccomp.Allowed:
        return _seccomp.Allowed(
            network=self._confine.network,
            processes=self._confine.processes,
            # From this version on, Landlock itself refuses signals to processes outside; the filter need not.
            signals=self._landlock_version >= _landlock.SIGNALS,
        )


def reason_not_enforceable(confine: Confine, landlock_version: int) -> str | None:
    """Return the reason why a kernel with this Landlock version cannot enforce `confine`; `None` if it can."""
    if not landlock_version:
        return (
            "confine= needs Landlock, which this kernel lacks, or was not told to use (since Linux 5.13; lsm=landlock)"
        )
    kernel_text = f"and this kernel has {landlock_version}"
    if landlock_version < _landlock.TRUNCATES:
        return f"confine= needs Landlock 3 (Linux 6.2), {kernel_text}: reading a file would empty it"
    if confine.processes and landlock_version < _landlock.SIGNALS:
        return f"processes=True needs Landlock 6 (Linux 6.12), {kernel_text}: signals would go anywhere"
    return None
