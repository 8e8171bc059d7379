"""Workers as new interpreters, started before they are asked for, because each has to load its modules first."""

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

from callboard_actors.process import _kernel
from callboard_actors.process._commands import COMMAND, REPORT, Command, Report
from callboard_actors.process._frames import Kind, frame, receive_exactly
from callboard_actors.process._loading import FatalError
from callboard_actors.process._settings import Settings

_AHEAD: Final = 1
"""Interpreters that wait to replace a worker."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A worker that the pool has asked for: its number, and the files that it is given, which are ours to close."""

    number: int
    fds: list[int]
    is_seat: bool

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@dataclass(slots=True)
class _Spare:
    """An interpreter that was started ahead, and how far it is on its way to be a worker."""

    pid: int
    cradle: socket
    is_ready: bool = False
    is_ending: bool = False
    given: _Request | None = None
    """Whose worker it is to be; it has not said yet that it has what it takes."""


class Spares:
    """Has workers made of spare interpreters; see `Starter`.

    Args:
        settings: what workers are told.
        poll: is told of the sockets on which they speak.
        loading: is told by its place which wanted module is loaded at the moment; if that ends the process, so it does
            everywhere.
        ready: is told when there are any.
        born: is told the number of a worker, and its process id.
        unborn: is told the number of one that cannot be had, and that of the error.
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
        self._spares: dict[int, _Spare] = {}
        self._lifeline, self._held = os.pipe()
        os.set_inheritable(self._lifeline, True)  # each of them has this end; the other one is closed when we die
        self._first: int | None = None
        self._is_ready = False
        self._is_over = False
        self._fails = False
        self._workers = settings.terms.workers

    def begin(self) -> None:
        """Start as many as will be asked for at once, and those that wait.

        Raises:
            OSError: there can be none.
        """
        for _ in range(self._workers + _AHEAD):
            self._start()

    def pids(self) -> set[int]:
        """The process ids of interpreters that are no workers yet."""
        return set(self._spares)

    def ask(self, number: int, fds: list[int], *, is_seat: bool) -> None:
        """Have a worker as soon as there is one."""
        self._requests.append(_Request(number, fds, is_seat))
        self._serve()

    def forget(self, number: int) -> bool:
        """Have no such worker after all; false if there is one."""
        for request in self._requests:
            if request.number == number:
                self._requests.remove(request)
                request.close()
                return True
        for spare in self._spares.values():
            if spare.given is not None and spare.given.number == number:
                spare.given.close()
                spare.given = None
                self._end(spare)
                return True
        return False

    def hear(self, fd: int) -> None:
        """Hear what one of them says.

        Raises:
            FatalError: there never was one, and it says why there cannot be.
        """
        spare = next((one for one in self._spares.values() if one.cradle.fileno() == fd), None)
        if spare is None:
            return
        try:
            report = _report(spare.cradle)
        except BlockingIOError:
            return  # who was heard there before has gone
        if report is None:  # it has ended, or a module that it has loaded closes what it does not know
            self._end(spare)
        else:
            self._take_in(spare, *report)

    def _hear_out(self, spare: _Spare) -> None:
        """Hear what one has said that has ended since; it has no process any more that could be signalled."""
        with suppress(BlockingIOError):
            while spare.cradle.fileno() >= 0 and (report := _report(spare.cradle)) is not None:
                self._take_in(spare, *report)

    def _take_in(self, spare: _Spare, what: int, number: int, value: int) -> None:
        if what == Report.LOADING and spare.pid == self._first and not self._is_ready:
            self._loading(number)
        elif what == Report.READY:
            self._take_ready(spare)
        elif what == Report.FAILED:
            text = bytes(receive_exactly(spare.cradle, value) or b"").decode(errors="replace")
            if not self._is_ready:
                raise FatalError(text)
            sys.stderr.write(f"callboard: a worker process cannot be started: {text}\n")
        elif what == Report.TAKEN and spare.given is not None:
            self._spares.pop(spare.pid, None)
            self._close_cradle(spare)
            spare.given.close()
            self._born(spare.given.number, spare.pid)
            spare.given = None

    def _take_ready(self, spare: _Spare) -> None:
        spare.is_ready = True
        self._fails = False
        if not self._is_ready:
            self._is_ready = True
            self._ready()
        self._serve()

    def lost(self, pid: int) -> None:
        """Be told that one of them has ended. What it has said before still counts: it may have become a worker.

        Raises:
            SystemExit: it was the first, before there were any; the pool knows what it was loading.
            FatalError: there never was one, and it said why there cannot be.
        """
        spare = self._spares.pop(pid, None)
        if spare is None:
            return
        spare.is_ending = True
        was_given = spare.given is not None
        try:
            if not self._is_over:
                self._hear_out(spare)
        finally:
            self._close_cradle(spare)
        if self._is_over or (was_given and spare.given is None):
            return
        if not self._is_ready and pid == self._first:
            raise SystemExit(1)
        if spare.given is not None:
            spare.given.close()
            self._unborn(spare.given.number, errno.EAGAIN)
        else:
            self._fails = True  # so that none is started in vain, again and again
            if len(self._requests) > self._waiting():
                self._refuse(errno.EAGAIN)
        self._refill()

    def end(self) -> None:
        """Start no more interpreters ahead."""
        self._is_over = True

    def _refuse(self, number: int) -> None:
        request = self._requests.popleft()
        request.close()
        self._unborn(request.number, number)

    def _serve(self) -> None:
        ready = [spare for spare in self._spares.values() if spare.is_ready and self._waits(spare)]
        while self._requests and ready:
            self._give(ready.pop(0), self._requests.popleft())
        self._refill()

    def _give(self, spare: _Spare, request: _Request) -> None:
        # Ours are closed when it has them: macOS loses files that are open nowhere while they are on their way.
        spare.given = request
        what = Command.SEAT if request.is_seat else Command.FORK
        try:
            send_fds(spare.cradle, [COMMAND.pack(what, request.number, 0.0)], request.fds)
        except ConnectionError:
            self._end(spare)

    def _refill(self) -> None:
        ahead = 0 if self._fails else _AHEAD
        try:
            while self._waiting() < len(self._requests) + ahead:
                self._start()
        except OSError as error:
            self._fails = True
            while len(self._requests) > self._waiting():
                self._refuse(error.errno or 0)

    def _waiting(self) -> int:
        """How many there are that nobody has."""
        return sum(map(self._waits, self._spares.values()))

    def _waits(self, spare: _Spare) -> bool:
        return spare.given is None and not spare.is_ending

    def _start(self) -> None:
        ours, theirs = socketpair()
        with theirs:
            theirs.set_inheritable(True)
            given = f"{theirs.fileno()}, {self._lifeline}, {os.getpid()}, quiet={self._first is not None}"
            code = (
                f"import sys; sys.path[:] = {sys.path!r}\n"
                f"from callboard_actors.process._spare import main; main({given})"
            )
            try:
                # What Python ignores, or the zygote, programs would ignore as well.
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
        self._spares[pid] = spare = _Spare(pid, ours)
        self._first = self._first or pid
        self._poll.register(ours, POLLIN)
        try:
            ours.sendall(self._told)
        except ConnectionError:
            self._end(spare)

    def _end(self, spare: _Spare) -> None:
        self._close_cradle(spare)
        spare.is_ending = True
        _kernel.signal_group(spare.pid, signal.SIGKILL)

    def _close_cradle(self, spare: _Spare) -> None:
        if spare.cradle.fileno() >= 0:
            self._poll.unregister(spare.cradle)
            spare.cradle.close()


def _report(cradle: socket) -> tuple[int, int, int] | None:
    """The next one; `None` if there will be none.

    Raises:
        BlockingIOError: it has not begun.
    """
    try:
        data = cradle.recv(REPORT.size, MSG_DONTWAIT)
        rest = receive_exactly(cradle, REPORT.size - len(data)) if data else None
    except ConnectionError:
        return None
    return None if rest is None else REPORT.unpack(data + rest)
