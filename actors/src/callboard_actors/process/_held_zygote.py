"""The zygote, as the pool holds it: a process that is started, given commands, and listened to."""

import fcntl
import os
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from callboard import ActorStartError
from callboard_actors.process import _kernel
from callboard_actors.process._commands import COMMAND, REPORT, Command, Report
from callboard_actors.process._confine import CannotConfineError, Confine
from callboard_actors.process._frames import Kind, frame
from callboard_actors.process._held_worker import HeldWorker
from callboard_actors.process._settings import Settings

if TYPE_CHECKING:
    from callboard_actors.process._bubblewrap import Inside

_NAME = "Processes"
_TO_END = 3.0
"""Seconds for it to end by itself; it has less to do than that."""
_STDERR = 2


class UnloadableError(Exception):
    """A zygote cannot go on with a module that it need not have loaded."""

    def __init__(self, module: str) -> None:
        self.module = module
        super().__init__(module)


class HeldZygote:
    """A running zygote, and the workers that it has."""

    def __init__(self, process: subprocess.Popen[bytes], inside: "Inside | None", control: socket.socket) -> None:
        self._process = process
        self._inside = inside
        self._control = control
        self._sending = anyio.Lock()
        self._workers: dict[int, HeldWorker] = {}
        self._ready = False
        self._gone = False

    @classmethod
    async def start(cls, settings: Settings) -> "HeldZygote":
        """Start it, and wait until it has loaded what it should.

        Raises:
            UnloadableError: it cannot load one of the modules that are wanted.
            ActorStartError: it could not.
        """
        ours, theirs = socket.socketpair()
        with _above_standard(theirs) as theirs:
            try:
                zygote = cls(*_started(theirs, settings.terms.confine), ours)
            except CannotConfineError as error:
                ours.close()
                raise ActorStartError(_NAME, str(error), never=True) from error
            except BaseException:
                ours.close()
                raise
        with suppress(ConnectionError):  # it has ended; why is told below
            ours.sendall(frame(Kind.CALL, 0, pickle.dumps(settings)))
        ours.setblocking(False)
        try:
            await zygote._until_ready(settings)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await zygote.close()
            raise
        return zygote

    async def _until_ready(self, settings: Settings) -> None:
        what, length, loading = Report.LOADING, 0, None
        while what == Report.LOADING:
            data = await self._receive_exactly(REPORT.size)
            if data is None and loading is not None:
                raise UnloadableError(loading)
            if data is None:
                raise await _ended_at_once(settings.terms.confine)
            what, number, length = REPORT.unpack(data)
            loading = settings.wanted[number] if what == Report.LOADING else None
        if what == Report.FAILED:
            text = await self._receive_exactly(length) or b""
            raise ActorStartError(_NAME, text.decode(errors="replace"), never=True)
        assert what == Report.READY
        self._ready = True

    async def fork(self, worker: HeldWorker, what: Command = Command.FORK) -> None:
        """Ask for a process for this worker, and wait for it, or for the end of the zygote.

        Raises:
            OSError: there is none.
        """
        self._workers[worker.number] = worker
        try:
            await self._command(COMMAND.pack(what, worker.number, 0.0), worker.fds())
        except BaseException:
            del self._workers[worker.number]
            worker.end(None)
            raise
        if self._gone and self._workers.pop(worker.number, None) is not None:
            worker.end(None)
        await worker.settled.wait()
        if worker.unforked is not None:
            raise OSError(worker.unforked, os.strerror(worker.unforked))

    async def end(self, worker: HeldWorker, grace: float) -> None:
        """Ask for the end of a worker and of all that it has started, unless that has been asked for."""
        if not worker.asked_to_end and not worker.ended.is_set():
            worker.asked_to_end = True
            await self._command(COMMAND.pack(Command.END, worker.number, grace), [])

    async def _command(self, command: bytes, fds: list[int]) -> None:
        async with self._sending:
            while not self._gone:
                try:
                    socket.send_fds(self._control, [command], fds)
                except BlockingIOError:
                    await anyio.wait_writable(self._control)
                except (ConnectionError, anyio.ClosedResourceError):
                    return  # `listen` tells everybody
                else:
                    return

    async def listen(self) -> None:
        """Tell workers what becomes of them, until the zygote ends."""
        while (data := await self._receive_exactly(REPORT.size)) is not None:
            what, number, value = REPORT.unpack(data)
            worker = self._workers[number]
            if what == Report.FORKED:
                worker.begin(value if self._inside is None else self._inside.pid(value))
            else:
                del self._workers[number]
                worker.unforked = None if what == Report.ENDED else value
                worker.end(value if what == Report.ENDED else None)
        self._lose_all()

    def _lose_all(self) -> None:
        """The zygote has died: its workers die with it, by the kernel; what they have started is left to us.

        Inside of bubblewrap that dies, too, all of it.
        """
        self._gone = True
        if self._inside is None:
            self._kill_groups()
        for worker in self._workers.values():
            worker.end(None)
        self._workers.clear()

    def _kill_groups(self) -> None:
        for worker in self._workers.values():
            if worker.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.pid, signal.SIGKILL)

    async def _receive_exactly(self, length: int) -> bytes | None:
        data = b""
        while len(data) < length:
            await anyio.wait_readable(self._control)
            try:
                got = self._control.recv(length - len(data))
            except BlockingIOError:
                continue
            except ConnectionError:
                got = b""
            if not got:
                return None
            data += got
        return data

    async def close(self) -> None:
        """Have it end, with all that is left, and wait until it has; nobody listens any more."""
        self._lose_all()
        anyio.notify_closing(self._control)
        self._control.close()
        if not self._ready:
            self._kill()  # it loads modules, does not listen, and has no workers
        with anyio.move_on_after(_TO_END):
            await self._until_ended()
        self._kill()
        await self._until_ended()

    def go_on(self) -> None:
        """Continue it if somebody has stopped it, so that it can end its workers in order."""
        pid = self._process.pid if self._inside is None else self._inside.program()
        if pid is not None and self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)

    def break_off(self) -> None:
        """Kill it with all that is below it, because it does not do what it is told; `listen` sees its end."""
        if self._process.poll() is not None:
            return
        if self._inside is None:
            # Before itself, or nobody could tell any more whose they are.
            for pid in _kernel.descendants_of(self._process.pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        self._kill()

    def kill(self) -> None:
        """End it at once, with all that is left, where nobody can wait."""
        if self._inside is None:
            self._kill_groups()
        self._control.close()
        self._kill()
        self._process.wait()

    def _kill(self) -> None:
        if self._inside is not None and self._process.poll() is None:
            self._inside.kill()
        self._process.kill()

    async def _until_ended(self) -> None:
        while self._process.poll() is None:
            await anyio.sleep(0.001)


def _started(control: socket.socket, confine: Confine | None) -> tuple["subprocess.Popen[bytes]", "Inside | None"]:
    # Our way to modules is the workers' way, too.
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from callboard_actors.process._zygote import main; main({control.fileno()})"
    )
    command = [sys.executable, "-c", code]
    if confine is None or not confine.in_bubblewrap:
        return _run(command, control, confine), None
    from callboard_actors.process._bubblewrap import Inside, wrapped

    process = _run(wrapped(command, confine), control, confine)
    return process, Inside(process.pid)


def _run(command: list[str], control: socket.socket, confine: Confine | None) -> "subprocess.Popen[bytes]":
    # A session of its own, which Ctrl-C does not reach; stdout belongs to our program, stderr to everybody.
    # Where this program was started without one, any other file may have its number.
    errors = subprocess.DEVNULL if sys.__stderr__ is None else _STDERR
    return subprocess.Popen(  # noqa: S603
        command,
        pass_fds=[control.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=errors,
        stderr=errors,
        start_new_session=True,
        env=None if confine is None else confine.environment_from(os.environ),
    )


def _above_standard(end: socket.socket) -> socket.socket:
    """The same socket by a number that is not stdin's, stdout's or stderr's, of which the zygote has its own."""
    if end.fileno() > _STDERR:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1))


async def _ended_at_once(confine: Confine | None) -> ActorStartError:
    if confine is not None and confine.in_bubblewrap:
        from callboard_actors.process._bubblewrap import why_it_failed

        if (reason := await why_it_failed(confine)) is not None:
            return ActorStartError(_NAME, reason, never=True)
    return ActorStartError(_NAME, "its zygote process ended at once; what it says is on stderr")
