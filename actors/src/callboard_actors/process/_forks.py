"""Workers as copies of the zygote, each in the instant in which it is asked for."""

import os
import signal
from collections.abc import Callable, Sequence
from socket import socket
from typing import TYPE_CHECKING, NoReturn

from callboard_actors.process import _kernel, _seat, _worker
from callboard_actors.process._exits import end_after
from callboard_actors.process._settings import Settings

if TYPE_CHECKING:
    from callboard_actors.process._confinement import Confinement


class Forks:
    """Has workers forked; see `Starter`.

    Args:
        settings: what workers are told.
        confinement: what they do to themselves, if they are not trusted.
        own: what of the zygote's no worker should have.
        ready: is told that there can be any.
        born: is told the number of a worker, and its process id.
        unborn: is told the number of one that cannot be had, and that of the error.
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
        """Say at once that workers can be had: a fork needs no preparation."""
        self._ready()

    def pids(self) -> set[int]:
        """Returns nobody: no worker is kept ahead, each is somebody's from the first."""
        return set()

    def ask(self, number: int, fds: list[int], *, is_seat: bool) -> None:
        """Fork a worker for somebody; the child becomes the worker, and never returns from here."""
        # A worker that is to end before it has handlers of its own hears of it when it has them.
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
            for fd in fds:
                os.close(fd)

    def forget(self, number: int) -> bool:
        """Say that no request waits: a fork is there when it is asked for."""
        return False

    def hear(self, fd: int) -> None:
        """Hear nothing: a fork has no socket to the zygote."""

    def lost(self, pid: int) -> None:
        """Do nothing: whoever has ended was a worker, and the pool knows."""

    def end(self) -> None:
        """Do nothing: no worker is being started."""

    def _become_worker(self, sock: int, output: int, notebook: int, *, is_seat: bool) -> NoReturn:
        def work() -> None:
            self._leave_the_zygote()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            if self._confinement is not None:
                self._confinement.enter([sock, notebook])
            serve = _seat.serve if is_seat else _worker.serve
            serve(socket(fileno=sock), notebook, self._settings)

        end_after(work)

    def _leave_the_zygote(self) -> None:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _kernel.signal_when_parent_dies(signal.SIGKILL)
        if os.getppid() != self._pid:
            os._exit(1)  # it died before it was asked for
        # Orphans within a worker stay its own; so those that come to the zygote are of workers that ended.
        _kernel.adopt_orphans()
        for one in self._own:
            one.close()
