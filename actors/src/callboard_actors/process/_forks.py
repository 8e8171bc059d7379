"""Starter of workers that are forked from the zygote when they are requested."""

import os
import signal
from collections.abc import Callable, Sequence
from socket import socket
from typing import TYPE_CHECKING, NoReturn

from callboard_actors._engine import _kernel
from callboard_actors.process import _seat, _worker
from callboard_actors.process._exits import end_after
from callboard_actors.process._settings import Settings

if TYPE_CHECKING:
    from callboard_actors.process._confinement._confinement import Confinement


class Forks:
    """Starts each worker as a fork of the zygote; see `Starter`.

    Args:
        settings: settings of the workers.
        confinement: restrictions that each worker applies to itself; `None` for trusted workers.
        own: sockets of the zygote that workers must not keep.
        ready: called when workers can be started.
        born: called with the number and the process id of a worker that has started.
        unborn: called with the number and the `errno` of a worker that could not be started.
    """

    def __init__(
        self,
        settings: Settings,
        confinement: "Confinement | None",
        own: Sequence[socket],
        *,
        ready: Callable[[], None],
        born: Callable[[int, int], None],
        unborn: Callable[[int, int], None],
    ) -> None:
        self._settings = settings
        self._confinement = confinement
        self._own = own
        self._ready = ready
        self._born = born
        self._unborn = unborn
        self._pid = os.getpid()

    def begin(self) -> None:
        """Report at once that workers can be started: a fork needs no preparation."""
        self._ready()

    def pids(self) -> set[int]:
        """Return the empty set: forked workers are assigned from the start."""
        return set()

    def ask(self, number: int, fds: list[int], *, is_seat: bool) -> None:
        """Fork a worker; in the child, become the worker and never return."""
        # Blocked across the fork: until the child has replaced the zygote's handlers, SIGTERM would run them and be
        # lost. It is delivered when the child unblocks the signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            pid = os.fork()
        except OSError as error:
            self._unborn(number, error.errno or 0)
        else:
            if not pid:
                self._become_worker(*fds, is_seat=is_seat)
            self._born(number, pid)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            # Only the zygote arrives here; the child exits in `_become_worker` with its own copies open.
            for fd in fds:
                os.close(fd)

    def forget(self, number: int) -> bool:
        """Return `False`: a fork is immediate, so no request is ever pending."""
        return False

    def hear(self, fd: int) -> None:
        """Do nothing: a forked worker has no socket to the zygote."""

    def lost(self, pid: int) -> None:
        """Do nothing: every process that ends was a worker, which the zygote reports itself."""

    def end(self) -> None:
        """Do nothing: there are no spare processes."""

    def _become_worker(self, sock: int, output: int, begun_counter: int, *, is_seat: bool) -> NoReturn:
        def work() -> None:
            self._leave_the_zygote()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            # Before any code of a call. Only these files, stdin, stdout and stderr stay open.
            if self._confinement is not None:
                self._confinement.enter([sock, begun_counter])
            serve = _seat.serve if is_seat else _worker.serve
            serve(socket(fileno=sock), begun_counter, self._settings)

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
