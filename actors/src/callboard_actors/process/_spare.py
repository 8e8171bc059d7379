"""A new interpreter, from within: it loads what workers need, waits to be given what makes it one, and is it.

It says so over its cradle, the socket that the zygote has the other end of.
"""

import _thread
import os
import signal
from socket import socket
from typing import NoReturn

from callboard_actors.process import _kernel, _seat, _worker
from callboard_actors.process._commands import COMMAND, GIVEN, Command, Report
from callboard_actors.process._exits import end_after, flush
from callboard_actors.process._loading import load, received_settings, tell, tell_failure
from callboard_actors.process._settings import Settings


def main(cradle: int, lifeline: int, parent: int, *, quiet: bool) -> NoReturn:
    """Live as long as the zygote does, which is the parent; it alone holds the other end of the lifeline."""
    sock = socket(fileno=cradle)
    sock.set_inheritable(False)
    os.set_inheritable(lifeline, False)
    _end_with(parent, lifeline)
    _kernel.adopt_orphans()
    try:
        settings = received_settings(sock)
        load(sock, settings, quiet=quiet)
        flush()
        tell(sock, Report.READY, 0, os.getpid())
    except BaseException as error:
        try:
            tell_failure(sock, error)
        finally:
            os._exit(1)
    end_after(lambda: _work(sock, settings))


def _work(cradle: socket, settings: Settings) -> None:
    data, fds = _kernel.receive_with_files(cradle, COMMAND.size, GIVEN)
    if len(fds) < GIVEN:
        return  # the zygote has gone
    sock, output, notebook = fds
    tell(cradle, Report.TAKEN, 0, 0)
    cradle.close()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    serve = _seat.serve if COMMAND.unpack(data)[0] == Command.SEAT else _worker.serve
    serve(socket(fileno=sock), notebook, settings)


def _end_with(parent: int, lifeline: int) -> None:
    if _kernel.signal_when_parent_dies(signal.SIGKILL):
        os.close(lifeline)
    else:
        # Not among the threads that user code may see. As long as C code keeps the interpreter's lock it cannot run;
        # such a worker is ended by the pool, or with the pool by the zygote.
        _thread.start_new_thread(_end_when_closed, (lifeline,))
    if os.getppid() != parent:
        os._exit(1)


def _end_when_closed(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)
