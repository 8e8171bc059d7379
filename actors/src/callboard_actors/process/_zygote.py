"""The zygote: a small process of one thread, the parent of all workers. It sees each of them end, and ends them itself.

It has loaded what they need and forks them; or, where that is not sound, has each started as a new interpreter.
As long as it has not asked for the exit code of a process, the number of that process is not given to another one.
"""

import gc
import importlib
import os
import select
import signal
import time
import traceback
from dataclasses import dataclass
from socket import socket, socketpair
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from callboard_actors.process import _kernel
from callboard_actors.process._commands import COMMAND, GIVEN, Command, Report
from callboard_actors.process._confine import CannotConfineError
from callboard_actors.process._frames import receive_exactly
from callboard_actors.process._loading import FatalError, load, received_settings, tell, tell_failure
from callboard_actors.process._settings import Settings

if TYPE_CHECKING:
    from callboard_actors.process._confinement import Confinement

_ORPHANS_TIME: Final = 1.0
"""Seconds until an end is reported although something of it is still there, such as a process stuck in the kernel."""
_LOOK: Final = 0.25
"""Seconds between two looks whether the parent lives, where the kernel does not tell."""


class Starter(Protocol):
    """How workers come to be. Of each that was asked for it is told some time that it was born, or never will be."""

    def begin(self) -> None:
        """Say that workers can be had, as soon as they can."""
        ...

    def pids(self) -> set[int]:
        """The ids of processes that are no workers yet."""
        ...

    def ask(self, number: int, fds: list[int], *, is_seat: bool) -> None:
        """Have a worker of this number, which gets these files."""
        ...

    def forget(self, number: int) -> bool:
        """Have no such worker after all; false if there is one."""
        ...

    def hear(self, fd: int) -> None:
        """Look what has come there, if it is known."""
        ...

    def lost(self, pid: int) -> None:
        """Be told that one of its processes has ended, if it is one; it may tell now that a worker was born."""
        ...

    def end(self) -> None:
        """Have no more processes than there are."""
        ...


def main(control: int) -> NoReturn:
    """Live as long as the other end of the control socket does."""
    sock = socket(fileno=control)
    sock.set_inheritable(False)
    try:
        settings = received_settings(sock)
        zygote = _Zygote(sock, settings)
        zygote.prepare()
    except BaseException as error:
        tell_failure(sock, error)
        os._exit(1)
    code = 0
    try:
        zygote.run()
    except ConnectionError:
        pass  # the pool is gone
    except FatalError as error:
        tell_failure(sock, error)
    except SystemExit:
        code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            zygote.end_all()
        finally:
            os._exit(code)


@dataclass(slots=True)
class _Child:
    """A worker that lives, and when it is killed if it was told to end."""

    number: int
    kill_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """A worker that has ended: the pool is told once its children have, too, or when the time for that is over."""

    number: int
    exitcode: int
    tell_at: float


def _confinement(settings: Settings) -> "Confinement | None":
    if settings.terms.confine is None:
        return None
    # Only those who need them pay for them.
    from callboard_actors.process import _plain_replies as _plain_replies
    from callboard_actors.process import _reader as _reader
    from callboard_actors.process._confinement import Confinement

    importlib.import_module(settings.backend)  # trio looks for a library by starting a compiler
    try:
        confinement = Confinement(settings.terms.confine)
        confinement.rehearse()
    except CannotConfineError as error:
        raise FatalError(str(error)) from error
    return confinement


class _Zygote:
    """The loop of the zygote."""

    def __init__(self, control: socket, settings: Settings) -> None:
        self._control = control
        self._settings = settings
        self._living: dict[int, _Child] = {}
        self._ended: list[_Ended] = []
        self._woken, self._wake = socketpair()
        self._poll = select.poll()  # unlike epoll, nothing that a fork would share
        self._terminated = False
        self._is_told = False

    def prepare(self) -> None:
        """Load what workers need, if they are forked.

        Raises:
            FatalError: there can be no workers.
        """
        self._starter = self._forks() if self._settings.terms.start == "fork" else self._spares()
        self._exempt = _kernel.children()  # what the preloaded modules have started

    def _forks(self) -> Starter:
        # Only those who need it pay for it; so below.
        from callboard_actors.process._forks import Forks

        confinement = _confinement(self._settings)
        load(self._control, self._settings)
        # What nobody frees, nobody copies.
        gc.collect()
        gc.freeze()
        own = (self._control, self._woken, self._wake)
        return Forks(self._settings, confinement, own, ready=self._ready, born=self._born, unborn=self._unborn)

    def _spares(self) -> Starter:
        from callboard_actors.process._spares import Spares

        return Spares(
            self._settings,
            self._poll,
            loading=lambda place: tell(self._control, Report.LOADING, place, 0),
            ready=self._ready,
            born=self._born,
            unborn=self._unborn,
        )

    def _ready(self) -> None:
        tell(self._control, Report.READY, 0, os.getpid())

    def _born(self, number: int, pid: int) -> None:
        self._living[pid] = _Child(number)
        tell(self._control, Report.FORKED, number, pid)

    def _unborn(self, number: int, error: int) -> None:
        tell(self._control, Report.UNFORKED, number, error)

    def run(self) -> None:
        """Obey commands and report ends, until the pool closes its end or dies."""
        self._listen_to_signals()
        _kernel.adopt_orphans()
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        self._starter.begin()
        while not self._is_over():
            ready = {fd for fd, _ in self._poll.poll(self._pause())}
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            if self._control.fileno() in ready and not self._obey():
                break
            for fd in ready:
                self._starter.hear(fd)
            self._look_around()

    def _listen_to_signals(self) -> None:
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)
        # Beside the end of the control socket, which children of the parent may hold open. It may mean the end of a
        # thread only, so it is looked at who the parent is.
        self._is_told = _kernel.signal_when_parent_dies(signal.SIGHUP)

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    def _is_over(self) -> bool:
        return self._terminated or os.getppid() != self._settings.parent

    def _pause(self) -> float | None:
        """Milliseconds until something has to be done by itself."""
        due = [child.kill_at for child in self._living.values() if child.kill_at is not None]
        due += [ended.tell_at for ended in self._ended]
        if not self._is_told:
            due.append(time.monotonic() + _LOOK)
        return max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None

    def _obey(self) -> bool:
        command, fds = _kernel.receive_with_files(self._control, COMMAND.size, GIVEN)
        if command and len(command) < COMMAND.size:
            rest = receive_exactly(self._control, COMMAND.size - len(command))
            command = command + rest if rest else b""
        if not command:
            return False
        what, number, grace = COMMAND.unpack(command)
        if what in (Command.FORK, Command.SEAT):
            self._starter.ask(number, fds, is_seat=what == Command.SEAT)
        elif what == Command.END and self._starter.forget(number):
            tell(self._control, Report.ENDED, number, 0)
        elif what == Command.END:
            self._end(number, grace)
        return True

    def _end(self, number: int, grace: float) -> None:
        for pid, child in self._living.items():
            if child.number == number and child.kill_at is None:
                child.kill_at = time.monotonic() + grace
                if grace > 0:
                    _kernel.signal_group(pid, signal.SIGTERM)
                    _kernel.signal_group(pid, signal.SIGCONT)

    def _look_around(self) -> None:
        """Kill what has had its grace, and bury what has ended."""
        now = time.monotonic()
        for pid, child in self._living.items():
            if child.kill_at is not None and child.kill_at <= now:
                _kernel.signal_group(pid, signal.SIGKILL)
                child.kill_at = now + 0.1  # it may have been forking
        while True:
            reaped = self._reap()
            orphans = self._orphans() if self._ended else set[int]()
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            if not reaped:
                break
        over = [ended for ended in self._ended if not orphans or ended.tell_at <= now]
        for ended in over:
            tell(self._control, Report.ENDED, ended.number, ended.exitcode)
            self._ended.remove(ended)

    def _reap(self) -> bool:
        """Ask for the exit code of every child that has ended; whether there was one."""
        reaped = False
        while self._living or self._ended or self._starter.pids():
            found = _kernel.bury(self._own(), self._kill_what_it_leaves)
            if found is None:
                break
            reaped = True
            pid, status = found
            self._starter.lost(pid)
            child = self._living.pop(pid, None)
            if child is not None:
                exitcode = os.waitstatus_to_exitcode(status)
                self._ended.append(_Ended(child.number, exitcode, time.monotonic() + _ORPHANS_TIME))
        return reaped

    def _own(self) -> set[int]:
        """Processes that lead a group of their own."""
        return self._living.keys() | self._starter.pids()

    def _kill_what_it_leaves(self, pid: int) -> None:
        if pid in self._own():
            _kernel.signal_group(pid, signal.SIGKILL)

    def _orphans(self) -> set[int]:
        return _kernel.children() - self._own() - self._exempt

    def end_all(self) -> None:
        """Kill every worker and all they have started, and wait for it."""
        self._starter.end()
        for pid in self._own():
            _kernel.signal_group(pid, signal.SIGKILL)
        until = time.monotonic() + _ORPHANS_TIME
        while (left := (_kernel.children() | self._own()) - self._exempt) and time.monotonic() < until:
            for pid in left:
                _kernel.signal_group(pid, signal.SIGKILL) if pid in self._own() else os.kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.001)
