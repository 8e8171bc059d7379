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
        self._landlock = _landlock.version()
        if reason := why_not(confine, self._landlock):
            raise CannotConfineError(reason)
        # The descriptors stay open in the zygote for its lifetime; workers inherit them and close them in `enter`.
        execute_right = _landlock.EXECUTE if confine.processes else 0
        readable = always_readable(confine.modules, network=confine.network)
        self._rules = [_landlock.rule(path, _landlock.READ | execute_right) for path in readable]
        self._rules.append(_landlock.rule("/dev/null", _landlock.WRITE))
        granted = (("read", confine.read, _landlock.READ), ("write", confine.write, _landlock.WRITE))
        for name, paths, rights in granted:
            for path in map(str, paths):
                try:
                    self._rules.append(_landlock.rule(path, rights | execute_right))
                except OSError as error:
                    raise CannotConfineError(f"{name} has {path!r}, which cannot be had: {error}") from error
        _seccomp.program(self._machine, 0, self._permissions())  # caches the common part, which forks share

    def rehearse(self) -> None:
        """Confine a forked test process; raise `CannotConfineError` if the kernel refuses any of the restrictions."""
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                self.enter([writing])
                os.write(writing, _DONE)
            except BaseException as error:  # this process ends here in any case
                os.write(writing, repr(error).encode())
            finally:
                os._exit(0)  # the child must not run the zygote's code
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            answer = stream.read()
        os.waitpid(pid, 0)
        if answer != _DONE:
            reason = answer.decode(errors="replace") or "it ended without a word"
            raise CannotConfineError(f"this system cannot confine a worker: {reason}")

    def enter(self, fds: Iterable[int]) -> None:
        """Confine this process permanently, and close all its open files except `fds`, stdin, stdout and stderr."""
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
            hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
            max_tasks = max_tasks if hard == resource.RLIM_INFINITY else min(max_tasks, hard)
            resource.setrlimit(resource.RLIMIT_NPROC, (max_tasks, max_tasks))
        # The order matters. The kernel requires no_new_privs before Landlock and seccomp. Landlock needs the open files
        # of its rules, so files are closed after it. The filter comes last, because it refuses the system calls of the
        # steps before it.
        _seccomp.take_no_new_privileges()
        # Drop all capabilities: root keeps its ownership of files, and loses every other privilege.
        syscall("capset", _CAPSET[self._machine], struct.pack("=Ii", _CAPABILITIES, 0), bytes(24))
        _landlock.restrict(self._rules, self._landlock, network=self._confine.network)
        # Ranges between the descriptors to keep: one system call each, however many files may be open.
        first = 0
        for fd in [*sorted({0, 1, 2, *fds}), 2**31 - 1]:
            if first < fd:  # `closerange(0, 0)` would close everything
                os.closerange(first, fd)
            first = fd + 1
        _seccomp.install(_seccomp.program(self._machine, os.getpid(), self._permissions()))

    def _permissions(self) -> _seccomp.Allowed:
        return _seccomp.Allowed(
            network=self._confine.network,
            processes=self._confine.processes,
            # From this version on, Landlock itself refuses signals to processes outside; the filter need not.
            signals=self._landlock >= _landlock.SIGNALS,
        )


def why_not(confine: Confine, version: int) -> str | None:
    """Return the reason why a kernel with Landlock `version` cannot enforce `confine`; `None` if the kernel can."""
    if not version:
        return (
            "confine= needs Landlock, which this kernel lacks, or was not told to use (since Linux 5.13; lsm=landlock)"
        )
    if version < _landlock.TRUNCATES:
        return f"confine= needs Landlock 3 (Linux 6.2), and this kernel has {version}: reading a file would empty it"
    if confine.processes and version < _landlock.SIGNALS:
        return f"processes=True needs Landlock 6 (Linux 6.12), and this kernel has {version}: signals would go anywhere"
    return None
