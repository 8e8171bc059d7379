"""Execution of one command in a worker, until it ends, times out or is stopped; its child processes end with it.

The worker adopts orphans, so all processes that the command has started are its descendants in /proc.
"""

import os
import select
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Self, TypedDict

from anyio import ContextManagerMixin

from callboard_actors._engine._kernel import descendants_of
from callboard_actors._util._excerpts import Excerpt
from callboard_actors.process._worker import sent_file

# Storage of output: a file of fixed size without a name, written by a worker and read by a shell. It holds the head of
# the output, followed by a ring with the last bytes of the rest. Written output survives a killed worker. A worker that
# is not trusted can only spoil its own output.
#
# It is a file and not a memfd, because a command can find its worker's descriptors in /proc. Landlock refuses a file in
# a folder that is not granted, but a memfd would let the command write to memory and execute it.

_HEADER = struct.Struct("<QQ")  # bytes whose writing has begun, bytes that are written
_TRIES = 20


class _Spool:
    """File of fixed size with the beginning and the end of a command's output; bytes in between are overwritten."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._head = size // 2
        self._ring = size - self._head

    def close(self) -> None:
        """Close the file; the system deletes it when every process has closed it."""
        os.close(self._fd)


class SpoolWriter(_Spool):
    """Writer of a command's output file, used in the worker that runs the command."""

    def __init__(self, fd: int, size: int) -> None:
        super().__init__(os.dup(fd), size)
        self._written = 0

    def write(self, data: bytes) -> None:
        """Append output of the command; the oldest bytes after the beginning of the output are overwritten."""
        end = self._written + len(data)
        # Announced before the data changes: a reader that sees another number afterwards reads again.
        os.pwrite(self._fd, _HEADER.pack(end, self._written), 0)
        if (room := self._head - self._written) > 0:
            os.pwrite(self._fd, data[:room], _HEADER.size + self._written)
            data = data[room:]
        data = data[-self._ring :]
        if data:
            start = (end - len(data) - self._head) % self._ring
            first = self._ring - start
            base = _HEADER.size + self._head
            os.pwrite(self._fd, data[:first], base + start)
            os.pwrite(self._fd, data[first:], base)
        self._written = end
        os.pwrite(self._fd, _HEADER.pack(end, end), 0)


class SpoolReader(_Spool):
    """Reader of a command's output file, in the process of the `Shell` actor.

    Creates the file; raises OSError if the disk is full.
    """

    def __init__(self, size: int) -> None:
        with tempfile.TemporaryFile() as file:
            # Allocated now, so that a disk that fills up later does not affect the writer.
            os.posix_fallocate(file.fileno(), 0, _HEADER.size + size)
            super().__init__(os.dup(file.fileno()), size)
        self._seen = 0

    def fileno(self) -> int:
        """Return the file descriptor of the output file, to be sent to the worker that runs the command."""
        return self._fd

    def look(self) -> Excerpt:
        """Return the output since the last call of this method, or the parts of it that the file still holds."""
        end, head, rest = self._looked()
        for _ in range(_TRIES):  # the output of a writer that never pauses is taken as it is
            if self._header()[0] == end:
                break
            end, head, rest = self._looked()
        left_out = max(0, end - self._seen - len(head) - len(rest))
        self._seen = end
        return Excerpt(head, left_out, rest)

    def _looked(self) -> tuple[int, bytes, bytes]:
        _, end = self._header()
        return end, *self._read(self._seen, end)

    def _header(self) -> tuple[int, int]:
        begun, end = _HEADER.unpack(os.pread(self._fd, _HEADER.size, 0).ljust(_HEADER.size, b"\0"))
        return begun, end

    def _read(self, since: int, end: int) -> tuple[bytes, bytes]:
        head = b""
        if since < self._head:
            head = os.pread(self._fd, max(0, min(end, self._head) - since), _HEADER.size + since)
        begin = max(since, self._head, end - self._ring)
        if begin >= end:
            return head, b""
        ring = os.pread(self._fd, self._ring, _HEADER.size + self._head)
        start = (begin - self._head) % self._ring
        return head, (ring[start:] + ring[:start])[: end - begin]


# Commands.

# Processes of the command.


def signal_all(group: int | None, number: int) -> int:
    """Send a signal to a process group, then to all descendants of this process; return the number of descendants.

    The leader of the group must not have been reaped; `None` for no group.
    """
    # A process that was forking may be missed; the next call finds it, because orphans become children of this process.
    found = descendants_of(os.getpid())
    # The group at once: a shell would otherwise print that its child was killed, before it is killed itself.
    with suppress(ProcessLookupError, PermissionError):
        if group is not None:
            os.killpg(group, number)
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return len(found)


# The run.

_CHUNK = 64 * 1024
_ROUND = 0.02
"""Seconds between two checks of a command that must end."""
_WAKES_BY_ITSELF = 3600.0
_LAST = 1.0
"""Maximum time in seconds to wait for the end of killed processes; a process may be stuck in the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Command with its environment and limits, as it is sent to a worker."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    keeps: int
    """Maximum size in bytes of the output that the file keeps."""
    timeout: float | None
    grace: float
    is_job: bool
    """True if the command ends with the last of its processes; False if it ends with its first process."""


class Ending(TypedDict):
    """Description of how a command ended, as plain data. It may come from a worker that is not trusted."""

    exitcode: int | None
    """Exit code of the command; `None` if the command could not be started."""
    seconds: float
    is_late: bool
    """True if the timeout ended the command."""
    left_running: int
    """Number of processes that the command left running, and that were ended."""
    error: str
    """Reason why the command could not be started; empty if it was started."""


def run_command(order: Order) -> Ending:
    """Run a command, end all processes that it leaves running, and return how the command ended."""
    began = time.monotonic()
    with closing(SpoolWriter(sent_file(), order.keeps)) as spool, _Course(order, spool) as course:
        try:
            course.begin()
        except (OSError, ValueError) as error:
            return _ending(None, began, error=_why(order, error))
        is_late = course.follow()
        left = course.end(politely=is_late or course.is_asked)
        return _ending(course.exitcode, began, is_late=is_late, left_running=0 if is_late else left)


def _ending(
    exitcode: int | None, began: float, *, is_late: bool = False, left_running: int = 0, error: str = ""
) -> Ending:
    seconds = time.monotonic() - began
    return Ending(exitcode=exitcode, seconds=seconds, is_late=is_late, left_running=left_running, error=error)


def _why(order: Order, error: Exception) -> str:
    if isinstance(error, OSError) and not os.path.isdir(order.cwd):  # noqa: PTH112 - that of a Path raises where it may not look
        return f"the working directory {order.cwd} is not there (any more)"
    return str(error)


class _Course(ContextManagerMixin):
    """Execution of one command, from its start to the end of its last process."""

    def __init__(self, order: Order, spool: SpoolWriter) -> None:
        self._order = order
        self._spool = spool
        self._child: subprocess.Popen[bytes] | None = None
        self._until = float("inf") if order.timeout is None else time.monotonic() + order.timeout
        self._poll = select.poll()
        self._output, self._their_output = os.pipe()
        os.set_blocking(self._output, False)
        self._poll.register(self._output, select.POLLIN)
        self._is_open = True
        self.exitcode: int | None = None
        self.is_asked = False
        """True if the worker has received SIGTERM, which asks it to end."""
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._woken, select.POLLIN)

    @contextmanager
    def __contextmanager__(self) -> Generator[Self]:
        """Let `poll` in the `with` block return at SIGTERM or the end of a child process; SIGTERM ends the command."""
        # The pool kills the worker after the grace.
        former = signal.signal(signal.SIGTERM, self._ask)
        # A handler, because an ignored signal writes no byte.
        former_child = signal.signal(signal.SIGCHLD, lambda *_: None)
        # The program that opened the pool may block the signal in its threads, and workers inherit that.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        former_fd = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            try:
                yield self
            finally:
                self.end(politely=False)
        finally:
            signal.set_wakeup_fd(former_fd)
            signal.signal(signal.SIGCHLD, former_child)
            signal.signal(signal.SIGTERM, former)
            for fd in (self._woken, self._wake, self._output):
                os.close(fd)
            # Passed on after the clean-up: the worker itself was asked to end, too.
            if self.is_asked:
                signal.raise_signal(signal.SIGTERM)

    def _ask(self, *_: object) -> None:
        self.is_asked = True

    def begin(self) -> None:
        """Start the command in a new session, without a terminal and input, and with one pipe for stdout and stderr."""
        nothing, writer = os.pipe()
        os.close(writer)
        try:
            self._child = subprocess.Popen(  # noqa: S603 - this is what is asked for
                self._order.argv,
                stdin=nothing,
                stdout=self._their_output,
                stderr=self._their_output,
                cwd=self._order.cwd,
                env=self._order.env,
                start_new_session=True,
            )
        finally:
            os.close(nothing)
            os.close(self._their_output)

    def follow(self) -> bool:
        """Read the output until the command has ended or must end; return `True` if the command's timeout is over."""
        while not self.is_asked and not self._is_over():
            left = self._until - time.monotonic()
            if left <= 0:
                return True
            self._round(left)
        return False

    def _is_over(self) -> bool:
        is_there = self._is_there()
        return self.exitcode is not None and not (self._order.is_job and is_there)

    def end(self, *, politely: bool) -> int:
        """End all remaining processes of the command; return the number of processes that were running."""
        # `politely` gives them the whole grace before they are killed, otherwise a second at most.
        if self._child is None:
            return 0
        found = self._signal(signal.SIGTERM)
        now = time.monotonic()
        kill_at = now + (self._order.grace if politely else min(_LAST, self._order.grace))
        while self._is_there() and time.monotonic() < kill_at:
            self._round(_ROUND)
        give_up_at = time.monotonic() + _LAST
        while self._is_there() and time.monotonic() < give_up_at:
            self._signal(signal.SIGKILL)
            self._round(_ROUND)
        # Bounded: a process that survived could write for ever.
        self._take(most=1 << 20)
        self._child = None
        return found

    def _signal(self, number: signal.Signals) -> int:
        assert self._child is not None
        # A reaped child's pid may belong to another process by now.
        group = self._child.pid if self.exitcode is None else None
        found = signal_all(group, number)
        if found and number is signal.SIGTERM:
            # A stopped process handles SIGTERM only after it continues.
            signal_all(group, signal.SIGCONT)
        return found

    def _is_there(self) -> bool:
        """Reap all child processes that have ended; return whether any child is left."""
        assert self._child is not None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._child.pid:
                self.exitcode = self._child.returncode = os.waitstatus_to_exitcode(status)

    def _round(self, seconds: float) -> None:
        """Wait for output or a signal, at most for `seconds`, and read the available output."""
        ready = {fd for fd, _ in self._poll.poll(min(seconds, _WAKES_BY_ITSELF) * 1000 + 1)}
        if self._woken in ready:
            os.read(self._woken, _CHUNK)
        if self._output in ready:
            self._take(most=_CHUNK)

    def _take(self, most: int) -> None:
        while self._is_open and most > 0:
            try:
                data = os.read(self._output, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self._poll.unregister(self._output)
                self._is_open = False
                return
            self._spool.write(data)
            most -= len(data)
