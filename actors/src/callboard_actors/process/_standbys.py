"""Starter of workers that are spawned as new interpreters, ahead of requests, because each has to load its modules."""

import errno
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from select import POLLIN, poll
from socket import MSG_DONTWAIT, send_fds, socket, socketpair
from typing import Final

from callboard_actors._engine import _kernel
from callboard_actors._engine._frames import Kind, frame, receive_exactly
from callboard_actors.process._commands import COMMAND, REPORT, Command, Report
from callboard_actors.process._loading import FatalError
from callboard_actors.process._settings import Settings

_AHEAD: Final = 1
"""Spare interpreters that wait to replace a worker."""


@dataclass(frozen=True, slots=True)
class _Request:
    """Request of the pool for a worker: number and received files, which the zygote has to close."""

    number: int
    fds: list[int]
    is_seat: bool

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@dataclass(slots=True)
class _Standby:
    """Interpreter that was started ahead, and its progress towards becoming a worker."""

    pid: int
    control: socket
    is_ready: bool = False
    # Killed or lost, but not reaped: its process id is still reserved.
    is_ending: bool = False
    given: _Request | None = None
    """Request that was sent to it; cleared when it confirms with TAKEN."""


class Standbys:
    """Makes workers out of spare interpreters; see `Starter`.

    Args:
        settings: settings of the workers.
        poll: the zygote's poll object, in which the control sockets are registered.
        loading: called with the index of the optional module that the first interpreter is loading. If the module ends
            that interpreter, it would end every other one.
        ready: called when the first interpreter is ready.
        born: called with the number and the process id of a worker that has started.
        unborn: called with the number and the `errno` of a worker that could not be started.
    """

    def __init__(
        self,
        settings: Settings,
        poll: poll,
        *,
        loading: Callable[[int], None],
        ready: Callable[[], None],
        born: Callable[[int, int], None],
        unborn: Callable[[int, int], None],
    ) -> None:
        self._told = frame(Kind.CALL, 0, pickle.dumps(settings))
        self._poll = poll
        self._loading = loading
        self._ready = ready
        self._born = born
        self._unborn = unborn
        self._requests = deque[_Request]()
        self._standbys: dict[int, _Standby] = {}
        self._lifeline, self._held = os.pipe()
        os.set_inheritable(self._lifeline, True)  # the write end stays here and closes when this process dies
        # Process id of the first interpreter. Only its reports on modules count: the others load the same ones.
        self._first: int | None = None
        self._is_ready = False
        self._is_over = False
        # Set by a failed start, cleared by a ready interpreter. While it is set, none is started ahead of requests.
        self._fails = False
        self._workers = settings.terms.workers

    def begin(self) -> None:
        """Start interpreters for all workers of the pool, and the spare ones; raise `OSError` if that fails."""
        for _ in range(self._workers + _AHEAD):
            self._start()

    def pids(self) -> set[int]:
        """Return the process ids of interpreters that are not workers yet."""
        return set(self._standbys)

    def ask(self, number: int, fds: list[int], *, is_seat: bool) -> None:
        """Queue a request, and serve it as soon as an interpreter is ready."""
        self._requests.append(_Request(number, fds, is_seat))
        self._serve()

    def forget(self, number: int) -> bool:
        """Withdraw a request; return `False` if its worker has started already."""
        for request in self._requests:
            if request.number == number:
                self._requests.remove(request)
                request.close()
                return True
        for spare in self._standbys.values():
            if spare.given is not None and spare.given.number == number:
                spare.given.close()
                spare.given = None
                # It has received the files and may become a worker at any moment, so it cannot be given to another
                # request.
                self._end(spare)
                return True
        return False

    def hear(self, fd: int) -> None:
        """Receive a report, if the descriptor is an interpreter's control socket.

        Raise `FatalError` if the report is a failure and no interpreter has ever been ready.
        """
        spare = next((one for one in self._standbys.values() if one.control.fileno() == fd), None)
        if spare is None:
            return
        try:
            report = _report(spare.control)
        except BlockingIOError:
            return  # a descriptor number that was reused since the poll
        if report is None:  # it has ended, or a loaded module closes descriptors that it does not know
            self._end(spare)
        else:
            self._take_in(spare, *report)

    def _hear_out(self, spare: _Standby) -> None:
        """Receive the remaining reports of an interpreter that has ended and was reaped."""
        with suppress(BlockingIOError):
            while spare.control.fileno() >= 0 and (report := _report(spare.control)) is not None:
                self._take_in(spare, *report)

    def _take_in(self, spare: _Standby, what: int, number: int, value: int) -> None:
        if what == Report.LOADING and spare.pid == self._first and not self._is_ready:
            self._loading(number)
        elif what == Report.READY:
            self._take_ready(spare)
        elif what == Report.FAILED:
            text = bytes(receive_exactly(spare.control, value) or b"").decode(errors="replace")
            if not self._is_ready:
                raise FatalError(text)
            sys.stderr.write(f"callboard: a worker process cannot be started: {text}\n")
        elif what == Report.TAKEN and spare.given is not None:
            # It is a worker from now on. Removed before `born`, so that no process is in both tables.
            self._standbys.pop(spare.pid, None)
            self._close_cradle(spare)
            spare.given.close()
            self._born(spare.given.number, spare.pid)
            spare.given = None

    def _take_ready(self, spare: _Standby) -> None:
        spare.is_ready = True
        self._fails = False
        if not self._is_ready:
            self._is_ready = True
            self._ready()
        self._serve()

    def lost(self, pid: int) -> None:
        """Handle the end of an interpreter; reports that it has sent before still count.

        If none has ever been ready, raise `FatalError` with the reason that the interpreter reported. If the first one
        ended without a reason, raise `SystemExit`; the pool then knows which module it was loading.
        """
        spare = self._standbys.pop(pid, None)
        if spare is None:
            return
        spare.is_ending = True
        was_given = spare.given is not None
        try:
            if not self._is_over:
                self._hear_out(spare)
        finally:
            self._close_cradle(spare)
        # It reported TAKEN, so `born` was called: the zygote handles its end as that of a worker.
        if self._is_over or (was_given and spare.given is None):
            return
        if not self._is_ready and pid == self._first:
            raise SystemExit(1)
        if spare.given is not None:
            spare.given.close()
            self._unborn(spare.given.number, errno.EAGAIN)
        else:
            self._fails = True  # so that none is started in vain, again and again
            # Fail one request per failed interpreter, or its caller would wait for a start that may never succeed.
            if len(self._requests) > self._waiting():
                self._refuse(errno.EAGAIN)
        self._refill()

    def end(self) -> None:
        """Start no more interpreters."""
        self._is_over = True

    def _refuse(self, number: int) -> None:
        request = self._requests.popleft()
        request.close()
        self._unborn(request.number, number)

    def _serve(self) -> None:
        ready = [spare for spare in self._standbys.values() if spare.is_ready and self._waits(spare)]
        while self._requests and ready:
            self._give(ready.pop(0), self._requests.popleft())
        self._refill()

    def _give(self, spare: _Standby, request: _Request) -> None:
        # Our copies are closed at TAKEN: macOS loses descriptors in transit that are open nowhere.
        spare.given = request
        what = Command.SEAT if request.is_seat else Command.FORK
        try:
            send_fds(spare.control, [COMMAND.pack(what, request.number, 0.0)], request.fds)
        except ConnectionError:
            self._end(spare)

    def _refill(self) -> None:
        ahead = 0 if self._fails else _AHEAD
        try:
            while self._waiting() < len(self._requests) + ahead:
                self._start()
        except OSError as error:
            self._fails = True
            # Interpreters that are still loading will serve the requests that remain.
            while len(self._requests) > self._waiting():
                self._refuse(error.errno or 0)

    def _waiting(self) -> int:
        """Return the number of interpreters that are not assigned to a request."""
        return sum(map(self._waits, self._standbys.values()))

    def _waits(self, spare: _Standby) -> bool:
        return spare.given is None and not spare.is_ending

    def _start(self) -> None:
        ours, theirs = socketpair()
        with theirs:
            theirs.set_inheritable(True)
            given = f"{theirs.fileno()}, {self._lifeline}, {os.getpid()}, quiet={self._first is not None}"
            code = (
                f"import sys; sys.path[:] = {sys.path!r}\n"
                f"from callboard_actors.process._standby import main; main({given})"
            )
            try:
                # Python ignores SIGPIPE and the zygote SIGINT. Ignored signals are inherited, even by programs that a
                # worker starts.
                pid = os.posix_spawn(
                    sys.executable,
                    [sys.executable, "-c", code],
                    os.environ,
                    setpgroup=0,
                    setsigmask=(),
                    setsigdef=(signal.SIGINT, signal.SIGPIPE),
                )
            except BaseException:
                ours.close()
                raise
        self._standbys[pid] = spare = _Standby(pid, ours)
        self._first = self._first or pid
        self._poll.register(ours, POLLIN)
        try:
            ours.sendall(self._told)
        except ConnectionError:
            self._end(spare)

    def _end(self, spare: _Standby) -> None:
        self._close_cradle(spare)
        spare.is_ending = True
        # It stays in `_standbys` until it is reaped, so that its process id is not signalled after reuse.
        _kernel.signal_group(spare.pid, signal.SIGKILL)

    def _close_cradle(self, spare: _Standby) -> None:
        if spare.control.fileno() >= 0:
            self._poll.unregister(spare.control)
            spare.control.close()


def _report(control: socket) -> tuple[int, int, int] | None:
    """Receive the next report; return `None` at the end, raise `BlockingIOError` if none has arrived."""
    try:
        data = control.recv(REPORT.size, MSG_DONTWAIT)
        # Blocks only for the rest of a report that has begun. The interpreter is trusted here: no call has run in it.
        rest = receive_exactly(control, REPORT.size - len(data)) if data else None
    except ConnectionError:
        return None
    return None if rest is None else REPORT.unpack(data + rest)
