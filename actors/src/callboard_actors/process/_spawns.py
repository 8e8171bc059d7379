"""Workers that are new interpreters, where a fork is unsafe: `Spawns` starts them, and `main` runs inside each.

A new interpreter receives its settings over its worker's socket, loads its modules, and reports to the pool.
"""

import _thread
import os
import signal
import sys
from collections.abc import Sequence
from socket import MSG_PEEK, socket
from typing import NoReturn

from callboard_actors._engine import _kernel
from callboard_actors._engine._frames import HEADER, Kind, frame, header_of
from callboard_actors.process import _worker
from callboard_actors.process._worker import end_after, flush, load, reason_of, received_settings


class Spawns:
    """Starter of workers that are new Python interpreters."""

    def __init__(self) -> None:
        self._lifeline, _ = os.pipe()
        os.set_inheritable(self._lifeline, True)  # the write end stays here and closes when this process dies

    def start(self, fds: Sequence[int], *, is_seat: bool) -> int:
        """Start a worker that inherits the given file descriptors; return its process id, or raise `OSError`."""
        for fd in fds:
            os.set_inheritable(fd, True)
        given = f"{list(fds)}, {self._lifeline}, {os.getpid()}"
        code = (
            f"import sys; sys.path[:] = {sys.path!r}\nfrom callboard_actors.process._spawns import main; main({given})"
        )
        # Python ignores SIGPIPE and the zygote SIGINT. Ignored signals are inherited, even by programs that a worker
        # starts.
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", code],
            os.environ,
            setpgroup=0,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGPIPE),
        )


def main(fds: Sequence[int], lifeline: int, parent: int) -> NoReturn:
    """Run a worker in this new interpreter, from the loading of its modules to the end of the process."""
    # `lifeline` is the read end of a pipe of which only the zygote holds the write end.
    for fd in (*fds, lifeline):
        os.set_inheritable(fd, False)
    number, output, begun_counter = fds
    sock = socket(fileno=number)
    # Before the modules are loaded, which may take long or for ever.
    _end_with(parent, lifeline)
    _kernel.adopt_orphans()
    try:
        settings = received_settings(sock)
        load(settings, sock)
    except BaseException as error:
        try:
            sock.sendall(frame(Kind.LOST, 0, reason_of(error)))
        finally:
            os._exit(1)
    # Until here, stdout and stderr are the zygote's; from here on, they belong to calls.
    flush()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)

    def work() -> None:
        sock.sendall(frame(Kind.VALUE))
        # Any worker may become a dedicated one, until its first call: the first frame decides.
        first = sock.recv(HEADER.size, MSG_PEEK)
        if not first:
            return  # the pool has closed the socket
        is_seat = header_of(first).kind is Kind.SEAT
        if is_seat:
            sock.recv(HEADER.size)
        _worker.serve(sock, begun_counter, settings, is_seat=is_seat)

    end_after(work)


def _end_with(parent: int, lifeline: int) -> None:
    if _kernel.signal_when_parent_dies(signal.SIGKILL):
        os.close(lifeline)
    else:
        # A raw thread, which is not listed in `threading`. It cannot run while C code holds the interpreter's lock;
        # then the pool ends the worker, or the zygote ends it together with the pool.
        _thread.start_new_thread(_end_when_closed, (lifeline,))
    # The zygote may have ended before the signal or the thread was set up.
    if os.getppid() != parent:
        os._exit(1)


def _end_when_closed(lifeline: int) -> None:
    # Nothing is ever written: it returns at the end of file, when the zygote has ended.
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)
