"""The zygote: a small process of one thread that has loaded what workers need, and forks them.

It is the parent of all workers, so it sees each of them end and ends them itself: as long as it has not asked for
the exit code of a process, the number of that process is not given to another one.
"""

import gc
import importlib
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from array import array
from dataclasses import dataclass
from socket import CMSG_LEN, MSG_CMSG_CLOEXEC, SCM_RIGHTS, SOL_SOCKET, socket, socketpair
from typing import TYPE_CHECKING, NoReturn

from callboard_actors.process import _kernel, _main_module, _seat, _worker
from callboard_actors.process._exits import exit_code, flush
from callboard_actors.process._frames import (
    COMMAND,
    END,
    ENDED,
    FAILED,
    FORK,
    FORKED,
    LOADING,
    READY,
    REPORT,
    SEAT,
    UNFORKED,
    receive_exactly,
    receive_frame,
)
from callboard_actors.process._settings import Settings

if TYPE_CHECKING:
    from callboard_actors.process._confinement import Confinement

_FDS = 3
"""That come with the command to fork."""
_ORPHANS_TIME = 1.0
"""Seconds until an end is reported although something of it is still there, such as a process stuck in the kernel."""


class _Fatal(Exception):  # noqa: N818 - never leaves this module
    """Why the zygote cannot begin."""


def main(control: int) -> NoReturn:
    """Live as long as the other end of the control socket does."""
    sock = socket(fileno=control)
    sock.set_inheritable(False)
    try:
        settings = _settings(sock)
        _main_module.expect(settings.main)
        confinement = _confinement(settings)
        _load(settings.terms.preload)
        _try_to_load(sock, settings.wanted)
        # What nobody frees, nobody copies.
        gc.collect()
        gc.freeze()
    except BaseException as error:
        text = str(error) if isinstance(error, _Fatal) else "".join(traceback.format_exception(error))
        _tell(sock, FAILED, 0, len(text.encode()), text.encode())
        os._exit(1)
    zygote = _Zygote(sock, settings, confinement)
    try:
        zygote.run()
    except ConnectionError:
        pass  # the pool is gone
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            zygote.end_all()
        finally:
            os._exit(0)


def _settings(sock: socket) -> Settings:
    found = receive_frame(sock)
    if found is None:
        raise _Fatal("whoever started it has gone")
    settings = pickle.loads(found[1])  # noqa: S301 - from our parent
    assert isinstance(settings, Settings)
    return settings


def _confinement(settings: Settings) -> "Confinement | None":
    if settings.terms.confine is None:
        return None
    # Only those who need them pay for them.
    from callboard_actors.process import _plain_replies as _plain_replies
    from callboard_actors.process import _reader as _reader
    from callboard_actors.process._confinement import CannotConfineError, Confinement

    importlib.import_module(settings.backend)  # trio looks for a library by starting a compiler
    try:
        confinement = Confinement(settings.terms.confine)
        confinement.rehearse()
    except CannotConfineError as error:
        raise _Fatal(str(error)) from error
    return confinement


def _load(modules: tuple[str, ...]) -> None:
    for name in modules:
        try:
            _main_module.module_named(name)
        except Exception as error:
            told = "".join(traceback.format_exception(error))
            raise _Fatal(f"preload={name!r} cannot be imported: {error!r}\n{told}") from error
        if threading.active_count() > 1:
            raise _Fatal(f"preload={name!r} starts a thread, which a fork would lose; leave it to the workers")


def _try_to_load(sock: socket, modules: tuple[str, ...]) -> None:
    for place, name in enumerate(modules):
        _tell(sock, LOADING, place, 0)
        try:
            _main_module.module_named(name)
        except SystemExit:
            os._exit(1)
        except Exception as error:
            if _main_module.is_unguarded():
                raise _Fatal(str(error)) from error
            sys.stderr.write(f"callboard: {name} is not preloaded in worker processes: {error!r}\n")
        if threading.active_count() > 1:
            os._exit(1)  # the pool starts another zygote, without it


def _tell(sock: socket, what: bytes, number: int, value: int, text: bytes = b"") -> None:
    sock.sendall(REPORT.pack(what, number, value) + text)


@dataclass(slots=True)
class _Child:
    number: int
    kill_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    number: int
    exitcode: int
    tell_at: float


class _Zygote:
    """The loop of the zygote."""

    def __init__(self, control: socket, settings: Settings, confinement: "Confinement | None") -> None:
        self._control = control
        self._confinement = confinement
        self._settings = settings
        self._living: dict[int, _Child] = {}
        self._ended: list[_Ended] = []
        self._exempt = _kernel.children()  # what the preloaded modules have started
        self._woken, self._wake = socketpair()
        self._terminated = False
        self._pid = os.getpid()

    def run(self) -> None:
        """Obey commands and report ends, until the pool closes its end or dies."""
        self._listen_to_signals()
        _kernel.adopt_orphans()
        poll = select.poll()  # unlike epoll, nothing that a fork would share
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        _tell(self._control, READY, 0, self._pid)
        while not self._is_over():
            ready = {fd for fd, _ in poll.poll(self._pause())}
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            if self._control.fileno() in ready and not self._obey():
                break
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
        _kernel.signal_when_parent_dies(signal.SIGHUP)

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    def _is_over(self) -> bool:
        return self._terminated or os.getppid() != self._settings.parent

    def _pause(self) -> float | None:
        """Milliseconds until something has to be done by itself."""
        due = [child.kill_at for child in self._living.values() if child.kill_at is not None]
        due += [ended.tell_at for ended in self._ended]
        return max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None

    def _obey(self) -> bool:
        command, fds = self._received()
        if command is None:
            return False
        what, number, grace = COMMAND.unpack(command)
        if what in (FORK, SEAT):
            self._fork(number, fds, is_seat=what == SEAT)
        elif what == END:
            self._end(number, grace)
        return True

    def _received(self) -> tuple[bytes | None, list[int]]:
        fds = array("i")
        data, ancillary, _, _ = self._control.recvmsg(COMMAND.size, CMSG_LEN(_FDS * fds.itemsize), MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == SOL_SOCKET and kind == SCM_RIGHTS:
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        if data and len(data) < COMMAND.size:
            rest = receive_exactly(self._control, COMMAND.size - len(data))
            data = data + rest if rest else b""
        return data or None, list(fds)

    def _fork(self, number: int, fds: list[int], *, is_seat: bool) -> None:
        # A worker that is to end before it has handlers of its own hears of it when it has them.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            pid = os.fork()
        except OSError as error:
            _tell(self._control, UNFORKED, number, error.errno or 0)
        else:
            if not pid:
                self._become_worker(*fds, is_seat=is_seat)
            self._living[pid] = _Child(number)
            _tell(self._control, FORKED, number, pid)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            for fd in fds:
                os.close(fd)

    def _become_worker(self, sock: int, output: int, notebook: int, *, is_seat: bool) -> NoReturn:
        code = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for name in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
                signal.signal(name, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _kernel.signal_when_parent_dies(signal.SIGKILL)
            if os.getppid() != self._pid:
                os._exit(code)  # it died before it was asked for
            # Orphans within a worker stay its own; so those that come to the zygote are of workers that ended.
            _kernel.adopt_orphans()
            for one in (self._control, self._woken, self._wake):
                one.close()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            if self._confinement is not None:
                self._confinement.enter([sock, notebook])
            serve = _seat.serve if is_seat else _worker.serve
            serve(socket(fileno=sock), notebook, self._settings)
            code = 0
        except SystemExit as end:
            code = exit_code(end)
        except BaseException:
            traceback.print_exc()
        finally:
            flush()
            os._exit(code)

    def _end(self, number: int, grace: float) -> None:
        for pid, child in self._living.items():
            if child.number == number and child.kill_at is None:
                child.kill_at = time.monotonic() + grace
                if grace > 0:
                    _signal_group(pid, signal.SIGTERM)
                    _signal_group(pid, signal.SIGCONT)

    def _look_around(self) -> None:
        """Kill what has had its grace, and bury what has ended."""
        now = time.monotonic()
        for pid, child in self._living.items():
            if child.kill_at is not None and child.kill_at <= now:
                _signal_group(pid, signal.SIGKILL)
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
            _tell(self._control, ENDED, ended.number, ended.exitcode)
            self._ended.remove(ended)

    def _reap(self) -> bool:
        """Ask for the exit code of every child that has ended; whether there was one."""
        reaped = False
        while self._living or self._ended:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if found is None:
                break
            reaped = True
            child = self._living.pop(found.si_pid, None)
            if child is not None:
                # Before its number is free, which is that of its group.
                _signal_group(found.si_pid, signal.SIGKILL)
            _, status = os.waitpid(found.si_pid, 0)
            if child is not None:
                exitcode = os.waitstatus_to_exitcode(status)
                self._ended.append(_Ended(child.number, exitcode, time.monotonic() + _ORPHANS_TIME))
        return reaped

    def _orphans(self) -> set[int]:
        return _kernel.children() - self._living.keys() - self._exempt

    def end_all(self) -> None:
        """Kill every worker and all they have started, and wait for it."""
        for pid in self._living:
            _signal_group(pid, signal.SIGKILL)
        until = time.monotonic() + _ORPHANS_TIME
        while (left := _kernel.children() - self._exempt) and time.monotonic() < until:
            for pid in left:
                _signal_group(pid, signal.SIGKILL) if pid in self._living else os.kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.001)


def _signal_group(leader: int, number: signal.Signals) -> None:
    """Signal a worker and its process group; the caller has not asked for its exit code yet."""
    for send in (os.killpg, os.kill):
        try:
            send(leader, number)
        except ProcessLookupError:
            pass  # it has just been forked, and has no group of its own yet
        except PermissionError:
            pass  # all that is left of the group belongs to somebody else
