"""Zygote: single-threaded parent process of all workers. It starts them, ends them, and reports their ends.

It loads the workers' modules and forks the workers. Where a fork is unsafe, it spawns new interpreters instead.

The id of a child is not reused until the zygote reaps the child, so the zygote never signals an unrelated process.
"""

import _thread
import gc
import importlib
import os
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from socket import socket, socketpair
from typing import TYPE_CHECKING, Final, NoReturn

from callboard_actors._engine import _kernel
from callboard_actors._engine._frames import Kind, as_json, encode_frame
from callboard_actors._util._import_path import import_path
from callboard_actors.process import _worker
from callboard_actors.process._confinement._confine import CannotConfineError
from callboard_actors.process._settings import Settings
from callboard_actors.process._worker import (
    FatalError,
    flush_output,
    load_modules,
    receive_settings,
    report_failure_and_exit,
    run_and_exit,
)

if TYPE_CHECKING:
    from callboard_actors.process._confinement._confinement import Confinement

# Protocol with the pool. Commands have one size, because they are received together with file descriptors. Reports are
# frames: EVENT with the index of a module before it is loaded, then VALUE when commands are accepted, or LOST with the
# reason why the process cannot start. Then EVENT for each worker: "forked" with its process id, "unforked" with the
# `errno`, "ended" with its exit code when it and its children have ended.

COMMAND: Final = struct.Struct("!BQd")
"""Binary format of a command: kind of command, worker number, grace in seconds."""
FILES_PER_COMMAND: Final = 3
"""Number of file descriptors that a start sends: socket, output pipe, file with the number of the begun call."""


class Command(IntEnum):
    """Kind of a command that a pool sends to its zygote: start or end a worker."""

    FORK = 1
    """Start a worker. Carries `FILES_PER_COMMAND` file descriptors."""
    END = 2
    """Send SIGTERM to a worker and its children, and SIGKILL after the grace."""


_ORPHANS_TIMEOUT: Final = 1.0
"""Seconds after which a worker's end is reported, even if a child process of the worker cannot be killed."""
_CHECK_INTERVAL: Final = 0.25
"""Seconds between two checks of the parent process, on systems where the kernel does not signal the parent's death."""


def main(control_fd: int) -> NoReturn:
    """Run the zygote until the pool closes its end of the control socket."""
    sock = socket(fileno=control_fd)
    sock.set_inheritable(False)
    try:
        settings = receive_settings(sock)
        zygote = _Zygote(sock, settings)
        zygote.prepare()
    except BaseException as error:
        report_failure_and_exit(sock, error)
    try:
        with suppress(ConnectionError):  # the pool has ended
            zygote.run()
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            # On every path: workers must not outlive the zygote, which is the only process that knows them.
            zygote.kill_all_workers()
        finally:
            os._exit(0)


@dataclass(slots=True)
class _LivingWorker:
    """Worker process that the zygote has forked and not reaped yet."""

    worker_number: int
    # Monotonic time of its SIGKILL; `None` until its end was requested.
    kill_at: float | None = None


@dataclass(frozen=True, slots=True)
class _EndedWorker:
    """Ended worker, which is reported to the pool when its child processes have ended, too, or at `report_at`."""

    worker_number: int
    exitcode: int
    report_at: float


def _fork_worker(
    settings: Settings,
    confinement: "Confinement | None",
    zygote_sockets: Sequence[socket],
    fds: Sequence[int],
) -> int:
    """Fork a worker and return its process id; raise `OSError` if the fork fails."""
    zygote_pid = os.getpid()

    def run_worker() -> None:
        socket_fd, output_fd, begun_counter_fd = fds
        # A process group per worker: signalling it also reaches the processes that a call starts.
        os.setpgid(0, 0)
        # The descriptor for wake-ups is shared with the zygote, which would be woken by this worker's signals.
        signal.set_wakeup_fd(-1)
        for signal_number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
            signal.signal(signal_number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Dies with the zygote. The check below covers a zygote that died before this request took effect.
        _kernel.signal_when_parent_dies(signal.SIGKILL)
        if os.getppid() != zygote_pid:
            os._exit(1)
        # Orphaned descendants of a worker become its own children. So orphans that reach the zygote are left by workers
        # that have ended.
        _kernel.adopt_orphans()
        # An open copy of the control socket would hide the zygote's death from the pool.
        for sock_of_zygote in zygote_sockets:
            sock_of_zygote.close()
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.close(output_fd)
        # Before any code of a call. Only these files, stdin, stdout and stderr stay open.
        if confinement is not None:
            confinement.confine_this_process([socket_fd, begun_counter_fd])
        _worker.serve_calls(socket(fileno=socket_fd), begun_counter_fd, settings)

    # The signal is blocked across the fork: until the child has replaced the zygote's handlers, SIGTERM would run them
    # and be lost. It is delivered when the child unblocks the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        pid = os.fork()
        if not pid:
            run_and_exit(run_worker)  # this process is the worker, and never returns
        return pid
    finally:
        # Only the zygote arrives here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


class _Zygote:
    """Event loop of the zygote: executes the commands of the pool, and reports the ends of workers."""

    def __init__(self, control_socket: socket, settings: Settings) -> None:
        self._control_socket = control_socket
        self._settings = settings
        # By process id. A worker moves from here to `_ended_workers` when it is reaped, and leaves that when its end is
        # reported.
        self._living_workers: dict[int, _LivingWorker] = {}
        self._ended_workers: list[_EndedWorker] = []
        # Signals write a byte here, to end a poll that began before the signal.
        self._wake_reader, self._wake_writer = socketpair()
        self._poll = select.poll()  # not epoll: a fork would share its state
        self._is_terminated = False

    def prepare(self) -> None:
        """Prepare the start of workers: if workers are forks, load their modules now."""
        # Raise `FatalError` if no worker can be started.
        if self._settings.options.start == "fork":
            confinement = None
            if self._settings.options.confine is not None:
                # Imported only if needed, since imports cost memory; and here, so that all forks share them.
                from callboard_actors._engine import _plain_replies as _plain_replies
                from callboard_actors.process._confinement._confinement import Confinement

                importlib.import_module(self._settings.backend)  # first: importing trio starts a compiler
                try:
                    confinement = Confinement(self._settings.options.confine)
                    # Before user modules are loaded: the rehearsal forks a small process, and an unsupported system is
                    # reported early.
                    confinement.rehearse()
                except CannotConfineError as error:
                    raise FatalError(str(error)) from error
            load_modules(self._settings, self._control_socket)
            # Frozen objects are not visited by the garbage collector of the forks, so their memory pages stay shared.
            gc.collect()
            gc.freeze()
            zygote_sockets = (self._control_socket, self._wake_reader, self._wake_writer)
            self._start_worker: Callable[[Sequence[int]], int] = partial(
                _fork_worker, self._settings, confinement, zygote_sockets
            )
        else:
            lifeline_fd, _ = os.pipe()  # the write end stays here, and closes when this process dies
            os.set_inheritable(lifeline_fd, True)
            self._start_worker = partial(_spawn_worker, lifeline_fd)
        # Children that are not waited for: processes started by preloaded modules, which are no orphans, and orphans
        # that cannot be killed.
        self._exempt_pids = _kernel.child_pids()

    def _send_report(self, worker_number: int, report_name: str, value: int) -> None:
        self._control_socket.sendall(encode_frame(Kind.EVENT, worker_number, as_json({report_name: value})))

    def run(self) -> None:
        """Execute the pool's commands and report the ends of workers, until the pool closes its socket or dies."""
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        # Ctrl-C is the pool's decision: it closes the zygote in order.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Handlers that do nothing: a signal with a handler wakes the poll below, an ignored one would not.
        for signal_number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(signal_number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)
        # In addition to the end of file on the control socket, which other children of the parent may keep open. The
        # signal comes when the parent's thread ends, so the loop checks the parent itself.
        # Without that signal, the loop checks the parent every `_CHECK_INTERVAL` seconds.
        gets_death_signal = _kernel.signal_when_parent_dies(signal.SIGHUP)
        # Orphans of workers become children of the zygote, which can then find and kill them.
        _kernel.adopt_orphans()
        self._poll.register(self._control_socket, select.POLLIN)
        self._poll.register(self._wake_reader, select.POLLIN)
        self._control_socket.sendall(encode_frame(Kind.VALUE))
        while not self._is_terminated and os.getppid() == self._settings.parent:
            # Until a kill, a report or a check of the parent is due.
            due_times = [worker.kill_at for worker in self._living_workers.values() if worker.kill_at is not None]
            due_times += [ended_worker.report_at for ended_worker in self._ended_workers]
            if not gets_death_signal:
                due_times.append(time.monotonic() + _CHECK_INTERVAL)
            # Rounded up by a millisecond: poll would otherwise return just before the time, again and again.
            pause_ms = max(0.0, min(due_times) - time.monotonic()) * 1000 + 1 if due_times else None
            ready_fds = {fd for fd, _ in self._poll.poll(pause_ms)}
            if self._wake_reader.fileno() in ready_fds:
                self._wake_reader.recv(4096)
            # One command per turn, so that signals and due kills are never delayed by a queue of commands. There is no
            # command any more when the pool has closed the socket.
            if self._control_socket.fileno() in ready_fds and not self._execute_command():
                break
            self._reap_and_report()

    def _terminate(self, *_: object) -> None:
        self._is_terminated = True

    def _execute_command(self) -> bool:
        command, fds = _kernel.receive_with_files(self._control_socket, COMMAND.size, FILES_PER_COMMAND)
        if len(command) < COMMAND.size:  # the pool has closed its end
            return False
        command_kind, worker_number, grace = COMMAND.unpack(command)
        if command_kind == Command.END:
            for pid, worker in self._living_workers.items():
                # A second request must not extend the grace.
                if worker.worker_number == worker_number and worker.kill_at is None:
                    worker.kill_at = time.monotonic() + grace
                    if grace > 0:
                        _kernel.signal_group(pid, signal.SIGTERM)
                        _kernel.signal_group(pid, signal.SIGCONT)  # a stopped process would not handle SIGTERM
            return True
        try:
            pid = self._start_worker(fds)
        except OSError as error:
            self._send_report(worker_number, "unforked", error.errno or 0)
        else:
            self._living_workers[pid] = _LivingWorker(worker_number)
            self._send_report(worker_number, "forked", pid)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _reap_and_report(self) -> None:
        """Kill workers whose grace is over, reap ended processes, and report the ends of workers to the pool."""
        now = time.monotonic()
        for pid, worker in self._living_workers.items():
            if worker.kill_at is not None and worker.kill_at <= now:
                _kernel.signal_group(pid, signal.SIGKILL)
                worker.kill_at = now + 0.1  # again later: a process that was just being forked may have been missed
        while True:
            has_reaped = self._reap_children()
            # While ended workers wait to be reported, every unknown child is an orphan of a worker. Killing orphans
            # makes new ones of their children, so this repeats until nothing more was reaped.
            orphan_pids = set[int]()
            if self._ended_workers:
                orphan_pids = _kernel.child_pids() - self._living_workers.keys() - self._exempt_pids
            for pid in orphan_pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except PermissionError:  # it has become another user's, and must not delay the report
                    self._exempt_pids.add(pid)
            orphan_pids -= self._exempt_pids
            if not has_reaped:
                break
        # A worker counts as ended when its child processes have ended, too, or at `report_at` if one cannot be killed.
        reported_workers = [worker for worker in self._ended_workers if not orphan_pids or worker.report_at <= now]
        for reported_worker in reported_workers:
            self._send_report(reported_worker.worker_number, "ended", reported_worker.exitcode)
            self._ended_workers.remove(reported_worker)

    def _reap_children(self) -> bool:
        """Reap all child processes that have ended; return whether any process was reaped."""
        has_reaped = False
        while self._living_workers or self._ended_workers:
            process = _kernel.reap_child(self._living_workers)
            if process is None:
                break
            has_reaped = True
            pid, status = process
            self._exempt_pids.discard(pid)
            worker = self._living_workers.pop(pid, None)
            if worker is not None:
                exitcode = os.waitstatus_to_exitcode(status)
                report_at = time.monotonic() + _ORPHANS_TIMEOUT
                self._ended_workers.append(_EndedWorker(worker.worker_number, exitcode, report_at))
        return has_reaped

    def kill_all_workers(self) -> None:
        """Kill all workers and their child processes, and wait for their end for a limited time."""
        for pid in self._living_workers:
            _kernel.signal_group(pid, signal.SIGKILL)
        deadline = time.monotonic() + _ORPHANS_TIMEOUT
        while (
            remaining_pids := (_kernel.child_pids() | self._living_workers.keys()) - self._exempt_pids
        ) and time.monotonic() < deadline:
            # Repeated, since killed processes leave orphans, and a process may fork before its signal arrives.
            for pid in remaining_pids:
                _kernel.signal_group(pid, signal.SIGKILL)
            self._reap_children()
            time.sleep(0.001)


# Workers that are new interpreters, where a fork is unsafe: they get settings over their socket, and load modules.


def _spawn_worker(lifeline_fd: int, fds: Sequence[int]) -> int:
    """Start a worker that inherits these file descriptors; return its process id, or raise `OSError`."""
    for fd in fds:
        os.set_inheritable(fd, True)
    arguments = f"{list(fds)}, {lifeline_fd}, {os.getpid()}"
    code = (
        f"import sys; sys.path[:] = {import_path()!r}\n"
        f"from callboard_actors.process._zygote import main_of_spawned; main_of_spawned({arguments})"
    )
    # Python ignores SIGPIPE and the zygote SIGINT. Ignored signals are inherited, also by programs of a worker.
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", code],
        os.environ,
        setpgroup=0,
        setsigmask=(),
        setsigdef=(signal.SIGINT, signal.SIGPIPE),
    )


def main_of_spawned(fds: Sequence[int], lifeline_fd: int, zygote_pid: int) -> NoReturn:
    """Run a worker in this new interpreter, from the loading of its modules to the end of the process."""
    # `lifeline_fd` is the read end of a pipe of which only the zygote holds the write end.
    for fd in (*fds, lifeline_fd):
        os.set_inheritable(fd, False)
    socket_fd, output_fd, begun_counter_fd = fds
    sock = socket(fileno=socket_fd)
    # Before the modules are loaded, which may take long or for ever.
    if _kernel.signal_when_parent_dies(signal.SIGKILL):
        os.close(lifeline_fd)
    else:
        # A raw thread, which is not listed in `threading`. It cannot run while C code holds the interpreter's lock;
        # then the pool ends the worker, or the zygote ends it together with the pool.
        _thread.start_new_thread(_end_group_when_closed, (lifeline_fd,))
    # The zygote may have ended before the signal or the thread was set up.
    if os.getppid() != zygote_pid:
        os._exit(1)
    _kernel.adopt_orphans()
    try:
        settings = receive_settings(sock)
        load_modules(settings, sock)
    except BaseException as error:
        report_failure_and_exit(sock, error)
    # Until here, stdout and stderr are the zygote's; from here on, they belong to calls.
    flush_output()
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.close(output_fd)

    def run_worker() -> None:
        sock.sendall(encode_frame(Kind.VALUE))
        _worker.serve_calls(sock, begun_counter_fd, settings)

    run_and_exit(run_worker)


def _end_group_when_closed(lifeline_fd: int) -> None:
    # Nothing is ever written, so `read` returns at the end of file, when the zygote has ended.
    os.read(lifeline_fd, 1)
    os.killpg(0, signal.SIGKILL)
