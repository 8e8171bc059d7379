"""Spawned interpreter, from within: loads modules, waits for a worker's files, and becomes that worker.

It reports to the zygote over its control socket.
"""

import _thread
import os
import signal
from socket import socket
from typing import NoReturn

from callboard_actors._engine import _kernel
from callboard_actors.process import _seat, _worker
from callboard_actors.process._commands import COMMAND, GIVEN, Command, Report
from callboard_actors.process._exits import end_after, flush
from callboard_actors.process._loading import load, received_settings, report_failure, tell
from callboard_actors.process._settings import Settings


def main(control: int, lifeline: int, parent: int, *, quiet: bool) -> NoReturn:
    """Run a spawned interpreter until the zygote, its parent, ends.

    Args:
        control: descriptor of the control socket.
        lifeline: read end of a pipe; only the zygote holds the write end.
        parent: process id of the zygote.
        quiet: do not report optional modules that cannot be imported; the first interpreter has done so.
    """
    sock = socket(fileno=control)
    sock.set_inheritable(False)
    os.set_inheritable(lifeline, False)
    # Before the modules are loaded, which may take long or for ever.
    _end_with(parent, lifeline)
    _kernel.adopt_orphans()
    try:
        settings = received_settings(sock)
        load(sock, settings, quiet=quiet)
        # Now, while stdout and stderr are the zygote's: later they belong to a call.
        flush()
        tell(sock, Report.READY, 0, os.getpid())
    except BaseException as error:
        try:
            report_failure(sock, error)
        finally:
            os._exit(1)
    end_after(lambda: _work(sock, settings))


def _work(control: socket, settings: Settings) -> None:
    data, fds = _kernel.receive_with_files(control, COMMAND.size, GIVEN)
    if len(fds) < GIVEN:
        return  # the zygote has ended
    sock, output, begun_counter = fds
    # Only now may the zygote close its copies of these files, and report the worker as started.
    tell(control, Report.TAKEN, 0, 0)
    control.close()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    serve = _seat.serve if COMMAND.unpack(data)[0] == Command.SEAT else _worker.serve
    serve(socket(fileno=sock), begun_counter, settings)


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
