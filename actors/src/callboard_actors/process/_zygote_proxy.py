"""Proxy of the zygote in the process of the pool: starts it, sends it commands, and receives its reports."""

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
from callboard_actors._engine import _kernel
from callboard_actors._engine._frames import OUTCOMES, FrameReader, Kind, frame, from_json
from callboard_actors._engine._socket_reader import incoming
from callboard_actors.process._confinement._confine import CannotConfineError, Confine
from callboard_actors.process._settings import Settings
from callboard_actors.process._worker_proxy import LONGEST_REASON, WorkerProxy, until_loaded
from callboard_actors.process._zygote import COMMAND, Command

if TYPE_CHECKING:
    from callboard_actors.process._confinement._bubblewrap import Inside

_NAME = "Processes"
_TO_END = 3.0
"""Seconds that the zygote has to end by itself before it is killed. It gives its workers no grace, so it is quick."""
_STDERR = 2


class ZygoteProxy:
    """Running zygote as the pool sees it: its process, its socket and its workers."""

    def __init__(self, process: subprocess.Popen[bytes], inside: "Inside | None", control: socket.socket) -> None:
        self._process = process
        self._inside = inside
        self._control = control
        self._incoming = incoming(control)
        self._reader = FrameReader(self._incoming.receive, LONGEST_REASON, kinds=OUTCOMES | {Kind.TOLD})
        self._sending = anyio.Lock()
        # Workers that were requested and whose end was not reported. Each is told its end exactly once, then removed.
        self._workers: dict[int, WorkerProxy] = {}
        self._ready = False
        # Set by `_lose_all` before it marks the workers as ended. `fork` checks it for a worker that was registered too
        # late.
        self._gone = False

    @classmethod
    async def start(cls, settings: Settings) -> "ZygoteProxy":
        """Start a zygote, wait until it has loaded its modules, and return it."""
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
        with suppress(ConnectionError):  # it has ended; `_until_ready` finds out why
            ours.sendall(frame(Kind.CALL, 0, pickle.dumps(settings)))
        # Blocking until here: the zygote reads its settings first, and they may be larger than the socket's buffer.
        ours.setblocking(False)
        try:
            await zygote._until_ready(settings)
        except BaseException:
            # Not to leave a process behind; the wait is bounded by `_TO_END`.
            with anyio.CancelScope(shield=True):
                await zygote.close()
            raise
        return zygote

    async def _until_ready(self, settings: Settings) -> None:
        try:
            await until_loaded(self._reader, settings)
        except ConnectionError:
            raise await _ended_at_once(settings.terms.confine) from None
        self._ready = True

    async def fork(self, worker: WorkerProxy, what: Command = Command.FORK) -> None:
        """Let the zygote start a worker process, and wait for the start; raise `OSError` if the worker cannot start."""
        # Before the command: its report may arrive while this task waits to be resumed.
        self._workers[worker.number] = worker
        try:
            await self._command(COMMAND.pack(what, worker.number, 0.0), worker.fds())
        except BaseException:
            del self._workers[worker.number]
            worker.end(None)
            raise
        # The zygote ended before the command was sent, and `_lose_all` ran before this registration.
        if self._gone and self._workers.pop(worker.number, None) is not None:
            worker.end(None)
        # A cancellation here leaves the worker registered: the process may start, and its owner has to end it.
        await worker.settled.wait()
        if worker.unforked is not None:
            raise OSError(worker.unforked, os.strerror(worker.unforked))

    async def end(self, worker: WorkerProxy, grace: float) -> None:
        """Ask the zygote to end a worker and its children; a second request for the same worker is not sent.

        `grace` is the time in seconds between SIGTERM and SIGKILL.
        """
        if not worker.asked_to_end and not worker.ended.is_set():
            # Before the await, so that a second task sends no second command and no call is given to this worker.
            worker.asked_to_end = True
            await self._command(COMMAND.pack(Command.END, worker.number, grace), [])

    async def _command(self, command: bytes, fds: list[int]) -> None:
        # One task waits for the socket at a time. A command is far smaller than the buffer, so it is sent whole.
        async with self._sending:
            while not self._gone:
                try:
                    socket.send_fds(self._control, [command], fds)
                except BlockingIOError:
                    await anyio.wait_writable(self._control)
                except (ConnectionError, anyio.ClosedResourceError):
                    return  # `listen` marks all workers as ended
                else:
                    return

    async def listen(self) -> None:
        """Receive reports and update the workers until the zygote ends."""
        with suppress(ConnectionError):
            while True:
                header, said = await self._reader.next()
                [(what, value)] = from_json(said).items()
                if what == "forked":
                    self._workers[header.number].begin(value if self._inside is None else self._inside.pid(value))
                    continue
                worker = self._workers.pop(header.number)
                worker.unforked = value if what == "unforked" else None
                worker.end(value if what == "ended" else None)
        self._lose_all()

    def _lose_all(self) -> None:
        """Mark all workers as ended after the zygote's death, and kill the processes that they started."""
        # The kernel kills workers together with their zygote, but not their children. Inside bubblewrap, the kernel
        # kills all processes.
        self._gone = True
        if self._inside is None:
            self._kill_groups()
        for worker in self._workers.values():
            worker.end(None)
        self._workers.clear()

    def _kill_groups(self) -> None:
        # Workers lead process groups. A group that still has members keeps its id; an empty group is not found, unless
        # its id was reused at this moment.
        for worker in self._workers.values():
            if worker.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.pid, signal.SIGKILL)

    async def close(self) -> None:
        """End the zygote and all its workers, and wait until the zygote has ended. `listen` must not be running."""
        self._lose_all()
        # Wakes tasks that wait to write; they see `_gone`. Closing the socket tells the zygote to end.
        anyio.notify_closing(self._control)
        self._close_control()
        if not self._ready:
            self._kill()  # it still loads modules, does not read the socket, and has no workers
        with anyio.move_on_after(_TO_END):
            await self._until_ended()
        self._kill()
        await self._until_ended()

    def break_off(self) -> None:
        """Kill a zygote that does not react to commands, and all its descendants. After that, `listen` returns."""
        if self._process.poll() is not None:
            return
        if self._inside is None:
            # Descendants first: after its death they are children of init, and cannot be found any more.
            for pid in _kernel.descendants_of(self._process.pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        self._kill()

    def kill(self) -> None:
        """Kill the zygote and its workers without using the event loop, which may be closed."""
        if self._inside is None:
            self._kill_groups()
        self._close_control()
        self._kill()
        self._process.wait()

    def _close_control(self) -> None:
        self._incoming.close()
        self._control.close()

    def _kill(self) -> None:
        if self._inside is not None and self._process.poll() is None:
            self._inside.kill()
        self._process.kill()

    async def _until_ended(self) -> None:
        while self._process.poll() is None:
            await anyio.sleep(0.001)


def _started(control: socket.socket, confine: Confine | None) -> tuple["subprocess.Popen[bytes]", "Inside | None"]:
    # Workers must find the same modules as this process, also after changes of `sys.path`.
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from callboard_actors.process._zygote import main; main({control.fileno()})"
    )
    command = [sys.executable, "-c", code]
    if confine is None or not confine.in_bubblewrap:
        return _run(command, control, confine), None
    from callboard_actors.process._confinement._bubblewrap import Inside, wrapped

    process = _run(wrapped(command, confine), control, confine)
    return process, Inside(process.pid)


def _run(command: list[str], control: socket.socket, confine: Confine | None) -> "subprocess.Popen[bytes]":
    # A new session: Ctrl-C in the terminal reaches this program only, which then ends the zygote in order. The zygote
    # prints to stderr, since stdout may carry this program's results. If this program has no stderr, descriptor 2 may
    # be an unrelated file.
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
    """Return the socket with a descriptor above 2: descriptors 0 to 2 are stdin, stdout and stderr in the zygote."""
    if end.fileno() > _STDERR:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1))


async def _ended_at_once(confine: Confine | None) -> ActorStartError:
    if confine is not None and confine.in_bubblewrap:
        from callboard_actors.process._confinement._bubblewrap import why_it_failed

        if (reason := await why_it_failed(confine)) is not None:
            return ActorStartError(_NAME, reason, never=True)
    return ActorStartError(_NAME, "its zygote process ended at once; what it says is on stderr")
