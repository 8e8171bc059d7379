"""Run of one command in its worker, until it ends, times out, or must end. No process of it is left then.

The worker adopts orphans, so all processes that the command has started are its descendants in /proc.
"""

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, TypedDict

from callboard_actors._engine._kernel import descendants_of
from callboard_actors.process._worker import sent_file
from callboard_actors.shell._spool import SpoolWriter

# Processes of the command.


def signal_all(number: int) -> int:
    """Signal all descendants of this process; return their number."""
    # A process that was forking may be missed; the next call finds it, because orphans become children of this process.
    found = descendants_of(os.getpid())
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return len(found)


# The run.

_CHUNK = 64 * 1024
_ROUND = 0.02
"""Seconds between two checks of a command that must end."""
_SELDOM = 0.2
"""Seconds between two checks of processes that a job has left running."""
_WAKES_BY_ITSELF = 3600.0
_LAST = 1.0
"""Seconds for killed processes to disappear; a process that is stuck in the kernel is not waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Description of a command for its worker."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    keeps: int
    """Bytes of output that the spool has room for."""
    timeout: float | None
    grace: float
    is_job: bool
    """True if the command lasts as long as any of its processes, and not only as long as the first one."""


class Ending(TypedDict):
    """End of a command, as plain data, which may come from a worker that is not trusted."""

    exitcode: int | None
    """`None` if the command could not be started."""
    seconds: float
    is_late: bool
    """True if the timeout ended the command."""
    left_running: int
    """Number of processes that it left running, and that were ended."""
    error: str
    """Reason why it could not be started."""


def run_command(order: Order) -> Ending:
    """Run a command; no process of it is left when this returns, however it was started."""
    began = time.monotonic()
    with SpoolWriter(sent_file(), order.keeps) as spool, _Course(order, spool) as course:
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


class _Course:
    """Course of one command, from its start to its end."""

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
        """True if the worker was asked to end."""
        self._pidfd: int | None = None
        self._woken: int | None = None
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._opened.enter_context(self._asked_by_signal())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end(politely=False)
        finally:
            self._opened.close()
            self._forget_pidfd()
            os.close(self._output)

    @contextlib.contextmanager
    def _asked_by_signal(self) -> Generator[None]:
        """Let SIGTERM end the command with its grace; the pool kills the worker after that."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        former = signal.signal(signal.SIGTERM, self._ask)
        # Wakes `poll` at once; without it the signal would be noticed after the next output or timeout only.
        former_fd = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll.register(woken, select.POLLIN)
        self._woken = woken
        try:
            yield
        finally:
            signal.set_wakeup_fd(former_fd)
            signal.signal(signal.SIGTERM, former)
            for fd in (woken, wake):
                os.close(fd)
            # Passed on after the clean-up: the worker itself was asked to end, too.
            if self.is_asked:
                signal.raise_signal(signal.SIGTERM)

    def _ask(self, *_: object) -> None:
        self.is_asked = True

    def begin(self) -> None:
        """Start the command in a session of its own, without terminal and input, with one pipe for all its output."""
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
        with contextlib.suppress(OSError):  # without a pidfd, it is polled
            self._pidfd = os.pidfd_open(self._child.pid)
            self._poll.register(self._pidfd, select.POLLIN)

    def follow(self) -> bool:
        """Read the output until the command has ended or must end; return whether its time is over."""
        while not self.is_asked and not self._is_over():
            left = self._until - time.monotonic()
            if left <= 0:
                return True
            self._round(min(left, _SELDOM if self._pidfd is None else _WAKES_BY_ITSELF))
        return False

    def _is_over(self) -> bool:
        is_there = self._is_there()
        return self.exitcode is not None and not (self._order.is_job and is_there)

    def end(self, *, politely: bool) -> int:
        """End all remaining processes of the command; return their number."""
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
        found = signal_all(number)
        if found and number is signal.SIGTERM:
            # A stopped process handles SIGTERM only after it continues.
            signal_all(signal.SIGCONT)
        return found

    def _is_there(self) -> bool:
        """Reap all processes that have ended; return whether others are left."""
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
                self._forget_pidfd()

    def _forget_pidfd(self) -> None:
        if self._pidfd is not None:
            self._poll.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _round(self, seconds: float) -> None:
        """Wait for an event, and read the available output."""
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
