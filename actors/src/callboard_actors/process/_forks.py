"""Starter of workers that are forked from the zygote."""

import os
import signal
from collections.abc import Sequence
from socket import socket
from typing import TYPE_CHECKING, NoReturn

from callboard_actors._engine import _kernel
from callboard_actors.process import _worker
from callboard_actors.process._settings import Settings
from callboard_actors.process._worker import end_after

if TYPE_CHECKING:
    from callboard_actors.process._confinement._confinement import Confinement


class Forks:
    """Starts each worker as a fork of the zygote."""

    def __init__(self, settings: Settings, confinement: "Confinement | None", own: Sequence[socket]) -> None:
        self._settings = settings
        self._confinement = confinement
        self._own = own
        self._pid = os.getpid()

    def start(self, fds: Sequence[int], *, is_seat: bool) -> int:
        """Fork a worker; in the child, become the worker and never return. Raise `OSError` if that fails."""
        # Blocked across the fork: until the child has replaced the zygote's handlers, SIGTERM would run them and be
        # lost. It is delivered when the child unblocks the signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            pid = os.fork()
            if not pid:
                self._become_worker(*fds, is_seat=is_seat)
            return pid
        finally:
            # Only the zygote arrives here; the child exits in `_become_worker`.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _become_worker(self, sock: int, output: int, begun_counter: int, *, is_seat: bool) -> NoReturn:
        def work() -> None:
            self._leave_the_zygote()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            # Before any code of a call. Only these files, stdin, stdout and stderr stay open.
            if self._confinement is not None:
                self._confinement.enter([sock, begun_counter])
            _worker.serve(socket(fileno=sock), begun_counter, self._settings, is_seat=is_seat)

        end_after(work)

    def _leave_the_zygote(self) -> None:
        # A process group per worker: signalling it also reaches the processes that a call starts.
        os.setpgid(0, 0)
        # The file descriptor is shared with the zygote, which would be woken by this worker's signals.
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Dies with the zygote. The check below covers a zygote that died before this request took effect.
        _kernel.signal_when_parent_dies(signal.SIGKILL)
        if os.getppid() != self._pid:
            os._exit(1)
        # Orphaned descendants of a worker become its own children. So orphans that reach the zygote are left by workers
        # that have ended.
        _kernel.adopt_orphans()
        # An open copy of the control socket would hide the zygote's death from the pool.
        for one in self._own:
            one.close()
