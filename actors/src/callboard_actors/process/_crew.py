"""Supervision of a pool in one event loop: `ZygoteProxy` for the parent process of the workers, `Crew` for the workers.

A task watches the zygote and replaces it when it dies; each of a fixed number of tasks starts a worker, waits for its
end, and starts the next.
"""

import fcntl
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from dataclasses import replace
from typing import Any

import anyio
import sniffio
from anyio.abc import TaskGroup

from callboard import ActorGoneError, ActorStartError
from callboard.extend import Body
from callboard_actors._engine import _kernel
from callboard_actors._engine._errors import WorkerDiedError
from callboard_actors._engine._frames import OUTCOMES, FrameReader, Kind, encode_frame, from_json
from callboard_actors._engine._lifecycle import IdleWorkers
from callboard_actors._engine._main_module import MAIN_NAME, main_module
from callboard_actors._util._backoff import Backoff
from callboard_actors._util._import_path import import_path
from callboard_actors.process._confinement._confine import Confine
from callboard_actors.process._settings import PoolOptions, Settings
from callboard_actors.process._socket_reader import Incoming
from callboard_actors.process._worker_proxy import LONGEST_REASON, UnloadableError, WorkerProxy, until_loaded
from callboard_actors.process._zygote import COMMAND, Command

# The zygote of a pool.

_ENGINE_NAME = "Processes"
_END_TIMEOUT = 3.0
"""Seconds that the zygote has to end by itself before it is killed. It gives its workers no grace, so it is quick."""
_STDERR = 2


class ZygoteProxy:
    """Object with which a pool starts, commands and ends its zygote, the parent process of the workers."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control_socket = control
        self._report_reader = FrameReader(Incoming(control), LONGEST_REASON, kinds=OUTCOMES | {Kind.EVENT})
        self._send_lock = anyio.Lock()
        # Workers that were requested and whose end was not reported. Each is told its end exactly once, then removed.
        self._workers_by_number: dict[int, WorkerProxy] = {}
        self._is_ready = False
        # Set by `_lose_all_workers` before it marks the workers as ended. `fork_worker` checks it for a worker that was
        # registered too late.
        self._has_died = False

    @classmethod
    async def start(cls, settings: Settings) -> "ZygoteProxy":
        """Start a zygote, wait until it has loaded its modules, and return its proxy."""
        pool_end, zygote_end = socket.socketpair()
        if zygote_end.fileno() <= _STDERR:  # the zygote uses 0, 1 and 2 for stdin, stdout and stderr
            with zygote_end:
                zygote_end = socket.socket(fileno=fcntl.fcntl(zygote_end, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1))
        with zygote_end:
            try:
                zygote = cls(_start_zygote_process(zygote_end, settings.options.confine), pool_end)
            except BaseException:
                pool_end.close()
                raise
        with suppress(ConnectionError):  # it has ended; `until_loaded` finds out why
            pool_end.sendall(encode_frame(Kind.CALL, 0, pickle.dumps(settings)))
        # Blocking until here: the zygote reads its settings first, and they may be larger than the socket's buffer.
        pool_end.setblocking(False)
        try:
            await until_loaded(zygote._report_reader, settings, "its zygote process")
            zygote._is_ready = True
        except BaseException:
            # Not to leave a process behind; the wait is bounded by `_END_TIMEOUT`.
            with anyio.CancelScope(shield=True):
                await zygote.close()
            raise
        return zygote

    async def fork_worker(self, worker: WorkerProxy) -> None:
        """Let the zygote start a worker, and wait until it has started; raise `OSError` on failure."""
        # Before the command: its report may arrive while this task waits to be resumed.
        self._workers_by_number[worker.number] = worker
        try:
            await self._send_command(COMMAND.pack(Command.FORK, worker.number, 0.0), worker.worker_fds())
        except BaseException:
            del self._workers_by_number[worker.number]
            worker.record_end(exitcode=None)
            raise
        # The zygote ended before the command was sent, and `_lose_all_workers` ran before this registration.
        if self._has_died and self._workers_by_number.pop(worker.number, None) is not None:
            worker.record_end(exitcode=None)
        # A cancellation here leaves the worker registered: the process may start, and its owner has to end it.
        await worker.start_settled.wait()
        if worker.fork_errno is not None:
            raise OSError(worker.fork_errno, os.strerror(worker.fork_errno))

    async def request_end(self, worker: WorkerProxy, grace: float) -> None:
        """Ask the zygote to end a worker and its child processes, unless this was already requested."""
        if not worker.is_ending and not worker.has_ended.is_set():
            # Before the await, so that a second task sends no second command and no call is given to this worker.
            worker.is_ending = True
            await self._send_command(COMMAND.pack(Command.END, worker.number, grace), [])

    async def _send_command(self, command: bytes, fds: list[int]) -> None:
        # One task waits for the socket at a time. A command is far smaller than the buffer, so it is sent whole.
        async with self._send_lock:
            while not self._has_died:
                try:
                    socket.send_fds(self._control_socket, [command], fds)
                except BlockingIOError:
                    await anyio.wait_writable(self._control_socket)
                except (ConnectionError, anyio.ClosedResourceError):
                    return  # `receive_reports` marks all workers as ended
                else:
                    return

    async def receive_reports(self) -> None:
        """Receive the zygote's reports about its workers, and update their proxies, until the zygote ends."""
        with suppress(ConnectionError):  # the end of the zygote
            while True:
                header, payload = await self._report_reader.read_frame()
                [(report_name, value)] = from_json(payload).items()
                if report_name == "forked":
                    self._workers_by_number[header.number].record_start(value)
                    continue
                worker = self._workers_by_number.pop(header.number)
                worker.fork_errno = value if report_name == "unforked" else None
                worker.record_end(value if report_name == "ended" else None)
        self._lose_all_workers()

    def _lose_all_workers(self) -> None:
        """Handle the zygote's death: mark all workers as ended, and kill the processes that they have started."""
        # The kernel kills workers together with their zygote, but not their children.
        self._has_died = True
        self._kill_worker_groups()
        for worker in self._workers_by_number.values():
            worker.record_end(exitcode=None)
        self._workers_by_number.clear()

    def _kill_worker_groups(self) -> None:
        # Workers lead process groups. A group that still has members keeps its id; an empty group is not found, unless
        # its id was reused at this moment.
        for worker in self._workers_by_number.values():
            if worker.pid is not None:
                # The group is empty, or its remaining members belong to another user.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(worker.pid, signal.SIGKILL)

    async def close(self) -> None:
        """End the zygote and all its workers, and wait until the zygote has ended; `receive_reports` must not run."""
        self._lose_all_workers()
        # Wakes tasks that wait to write; they see `_has_died`. Closing the socket tells the zygote to end.
        anyio.notify_closing(self._control_socket)
        self._control_socket.close()
        if not self._is_ready:
            self._process.kill()  # it still loads modules, does not read the socket, and has no workers
        with anyio.move_on_after(_END_TIMEOUT):
            await self._until_ended()
        self._process.kill()
        await self._until_ended()

    def kill_with_descendants(self) -> None:
        """Kill a zygote that does not react to commands, and all its descendants. Then `receive_reports` returns."""
        if self._process.poll() is not None:
            return
        # Descendants first: after its death they are children of init, and cannot be found any more.
        for pid in _kernel.descendant_pids(self._process.pid):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()

    def kill_blocking(self) -> None:
        """Kill the zygote and its workers without using the event loop, which may be closed."""
        self._kill_worker_groups()
        self._control_socket.close()
        self._process.kill()
        self._process.wait()

    async def _until_ended(self) -> None:
        while self._process.poll() is None:
            await anyio.sleep(0.001)


def _start_zygote_process(control_socket: socket.socket, confine: Confine | None) -> "subprocess.Popen[bytes]":
    # Workers must find the same modules as this process, also after changes of `sys.path`.
    code = (
        f"import sys; sys.path[:] = {import_path()!r}\n"
        f"from callboard_actors.process._zygote import main; main({control_socket.fileno()})"
    )
    # A new session: Ctrl-C in the terminal reaches this program only, which then ends the zygote in order. The zygote
    # prints to stderr, since stdout may carry this program's results. If this program has no stderr, descriptor 2 may
    # be an unrelated file.
    output_fd = subprocess.DEVNULL if sys.__stderr__ is None else _STDERR
    return subprocess.Popen(  # noqa: S603 (our own module)
        [sys.executable, "-c", code],
        pass_fds=[control_socket.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
        start_new_session=True,
        env=None if confine is None else confine.environment_from(os.environ),
    )


# The workers of a pool.

_logger = logging.getLogger("callboard_actors.process")

_PAUSE = 0.05
"""Seconds before the restart of a zygote, or of a worker after two failures in a row; doubled each time."""
_LONGEST_PAUSE = 5.0
"""Upper bound of `_PAUSE` after doubling."""
_END_REPORT_TIMEOUT = 5.0
"""Seconds after a worker's grace. If the zygote has not reported the worker's end by then, the zygote is killed."""
_HURRIED_TIMEOUT = 0.5
"""Same as `_END_REPORT_TIMEOUT`, for a pool that is closed by a cancelled task."""


class Crew:
    """Supervisor of the workers of a pool in one event loop.

    `run_until_dismissed` runs in its own task, which ends by `dismiss` only, or with the event loop. It is never
    cancelled by callers, because cancelled calls wait for the reports that it receives. Its failures are raised in the
    tasks that wait for workers.
    """

    def __init__(self, options: PoolOptions, optional_modules: dict[str, None]) -> None:
        self._options = options
        # The zygote ends when its parent is not this process.
        self._settings = Settings(
            parent=os.getpid(), backend=sniffio.current_async_library(), options=options, main=main_module()
        )
        self._optional_modules = optional_modules
        # `None` before the first start and between two zygotes.
        self._zygote: ZygoteProxy | None = None
        # Workers of the pool's places, and dedicated workers. Both are ended and awaited by `dismiss`.
        self._pool_workers: set[WorkerProxy] = set()
        self._dedicated_workers: set[WorkerProxy] = set()
        self._background_group: TaskGroup
        self._is_spawning = options.start == "spawn"
        # An interpreter takes long to start: one more than there may be calls waits to replace another one.
        self._worker_count = options.workers + (1 if self._is_spawning else 0)
        self._idle_workers = IdleWorkers[WorkerProxy](options.workers)
        # Why no zygote runs; cleared when one runs again. While it is set, calls fail instead of waiting.
        self._outage: Exception | None = None
        # Set when the first zygote is ready, and when `run_until_dismissed` has ended without one.
        self._first_zygote_settled = anyio.Event()
        # Set once when every place has a worker for the first time.
        self._first_start_settled = anyio.Event()
        self._dismissal = anyio.Event()
        self._has_ended = anyio.Event()
        # Cancelled at the very end of a dismissal: its cancellation closes the zygote.
        self._run_scope = anyio.CancelScope()
        self._end_wait_scope = anyio.CancelScope()
        """Cancel scope of the wait for the end of all workers; `dismiss` sets its deadline."""
        self.failure: ActorStartError | None = None
        """Error that prevented the start of the pool. After it, no further start is attempted."""

    @property
    def is_dismissed(self) -> bool:
        """`True` after `dismiss` was called: no new call is accepted."""
        return self._dismissal.is_set()

    async def until_ready(self) -> None:
        """Wait until all workers of the pool have started, or the start has failed; `failure` is then set."""
        await self._first_zygote_settled.wait()
        with anyio.move_on_after(self._options.start_timeout):
            await self._first_start_settled.wait()
        if not self._first_start_settled.is_set():
            raise self._timeout_error()

    def _timeout_error(self) -> ActorStartError:
        reason = f"it was not ready within {self._options.start_timeout:g} s"
        if MAIN_NAME in self._optional_modules:
            reason += '; it loads __main__, which may run for ever unless that is below `if __name__ == "__main__":`'
        return ActorStartError(_ENGINE_NAME, reason)

    async def run_until_dismissed(self) -> None:
        """Run the zygote and its workers, and replace each process that ends, until `dismiss` is called."""
        try:
            with self._run_scope:
                async with anyio.create_task_group() as group:
                    self._background_group = group
                    group.start_soon(self._end_all_when_dismissed)
                    await self._run_zygotes()
                    group.cancel_scope.cancel()
        finally:
            # Also on failure and on cancellation by a closing event loop: every waiting task must be woken.
            self._dismissal.set()
            self._idle_workers.fail_waiting_calls()
            self._first_zygote_settled.set()
            self._first_start_settled.set()
            self._has_ended.set()

    async def _run_zygotes(self) -> None:
        backoff = Backoff(_PAUSE, _LONGEST_PAUSE)
        while self.failure is None:
            started_at = anyio.current_time()
            try:
                await self._run_zygote()
            except Exception as error:
                self._record_outage(error)
            # An attempt that has lasted a second cannot be repeated often enough to do harm, whether it failed or not.
            if anyio.current_time() - started_at > 1:
                backoff.reset()
            if self.failure is None:
                await anyio.sleep(backoff.next_pause())

    def _record_outage(self, error: Exception) -> None:
        """Record that the zygote has failed with `error`, and let the calls that wait for a worker fail."""
        # If no zygote has run before, set `failure` instead, which is final: most likely each start would fail, and
        # the caller of `async with` is told.
        if not self._first_zygote_settled.is_set():
            reason = f"its zygote process cannot be started: {error!r}"
            self.failure = error if isinstance(error, ActorStartError) else ActorStartError(_ENGINE_NAME, reason)
            return
        if self._outage is None:  # logged once per outage, not at each attempt
            _logger.error("a pool of processes has no workers, and tries again: %r", error)
        self._outage = error
        self._idle_workers.fail_waiting_calls()

    async def _run_zygote(self) -> None:
        with anyio.move_on_after(self._options.start_timeout) as scope:
            while self._zygote is None:
                try:
                    self._zygote = await ZygoteProxy.start(self._current_settings())
                except UnloadableError as error:
                    self._exclude_from_preload(error.module)
        if scope.cancelled_caught or self._zygote is None:
            raise self._timeout_error()
        self._outage = None
        self._first_zygote_settled.set()
        try:
            async with anyio.create_task_group() as worker_group:
                for _ in range(self._worker_count):
                    worker_group.start_soon(self._keep_worker_running, self._zygote)
                await self._zygote.receive_reports()
                # `receive_reports` has returned: the zygote is dead, and every worker has been marked as ended.
                worker_group.cancel_scope.cancel()
        finally:
            # Closing waits for the process and its workers. If it were interrupted, processes would remain that nothing
            # ends.
            with anyio.CancelScope(shield=True):
                await self._zygote.close()
                self._zygote = None

    def _current_settings(self) -> Settings:
        names = tuple(name for name in self._optional_modules if name not in self._options.preload)
        return replace(self._settings, optional_modules=names)

    def _exclude_from_preload(self, module: str) -> None:
        """Exclude an optional module from preloading, because a process ended while it loaded the module."""
        if module in self._optional_modules:
            del self._optional_modules[module]
            _logger.info("%s starts threads or ends its process, so each worker loads it by itself", module)

    async def _keep_worker_running(self, zygote: ZygoteProxy) -> None:
        useless_starts, backoff = 0, Backoff(_PAUSE, _LONGEST_PAUSE)
        # `useless_starts` counts consecutive workers that served no call or did not start. The first one is replaced at
        # once.
        while not self.is_dismissed:
            try:
                worker = self._new_worker()
                await self._run_worker(worker, zygote)
            except UnloadableError as error:
                # An interpreter that the closing pool has ended while it loaded says nothing of its module.
                if not self.is_dismissed:
                    self._exclude_from_preload(error.module)
            # OSError: too many open files or processes; calls wait until there are fewer.
            except (ActorStartError, OSError) as error:
                # Before the first success, a failure of the modules is final, and the caller of `async with` is told.
                if isinstance(error, ActorStartError) and not self._first_start_settled.is_set():
                    self.failure = error
                    self._first_start_settled.set()
                if self.failure is not None or self._dismissal.is_set():
                    return
                if not useless_starts:
                    _logger.warning("a worker process cannot be started; it is tried again until it can: %s", error)
                useless_starts += 1
            else:
                useless_starts = 0 if worker.call_count else useless_starts + 1
            if not useless_starts:
                backoff.reset()
            elif useless_starts > 1:
                await anyio.sleep(backoff.next_pause())

    def _new_worker(self) -> WorkerProxy:
        return WorkerProxy(self._options.max_output, is_trusted=self._options.confine is None)

    async def _run_worker(self, worker: WorkerProxy, zygote: ZygoteProxy) -> None:
        """Start a worker, make it available to calls, and wait until it ends; raise `OSError` if the start fails."""
        self._pool_workers.add(worker)
        try:
            await self._start_worker(worker, zygote)
            # The worker may have ended already, between the report of its start and this line.
            if worker.is_alive:
                self.offer_worker(worker)
                if len(self.pids()) >= self._options.workers:
                    self._first_start_settled.set()
            async with anyio.create_task_group() as group:
                # Between calls, too: a full pipe would block a worker that prints from a thread.
                group.start_soon(worker.collect_output)
                await worker.has_left_pool.wait()
                group.cancel_scope.cancel()
        finally:
            self._pool_workers.discard(worker)
            self._idle_workers.remove(worker)
            if worker not in self._dedicated_workers:
                worker.close()
            worker.has_released_output.set()

    async def _start_worker(self, worker: WorkerProxy, zygote: ZygoteProxy) -> None:
        """Start a worker process, and wait until it can serve calls."""
        # If its modules cannot be loaded, the process is ended before the error is raised.
        await zygote.fork_worker(worker)
        if self._is_spawning:
            settings = self._current_settings()
            self._settings = replace(self._settings, is_quiet=True)  # one complaint of each module is enough
            try:
                with anyio.fail_after(self._options.start_timeout):
                    await worker.until_loaded(settings)
            # A cancellation is not caught: it comes with the end of the zygote, or `start_dedicated_worker` ends the
            # worker.
            except Exception:
                await self.end_worker(worker, 0.0)
                raise
        worker.is_ready = True

    async def start_dedicated_worker(self, title: str) -> WorkerProxy:
        """Start and return a dedicated worker, for `end_dedicated_worker` to end; on failure, raise WorkerDiedError."""
        while self._zygote is None and self._outage is None and not self.is_dismissed:
            await anyio.sleep(_PAUSE / 10)  # the next zygote is being started
        try:
            if self._zygote is None:
                raise OSError("its pool of processes is closed" if self._outage is None else f"{self._outage}")
            spare = self._idle_workers.take_spare()
            worker = self._new_worker() if spare is None or not spare.is_alive else spare
            self._dedicated_workers.add(worker)
            try:
                if worker is spare:
                    # Otherwise `_keep_worker_running` would count it as a worker that was started without any use.
                    worker.call_count += 1
                    worker.has_left_pool.set()
                    # Only one task may read the worker's output at a time.
                    with anyio.CancelScope(shield=True):
                        await worker.has_released_output.wait()
                else:
                    await self._start_worker(worker, self._zygote)
                await worker.send(encode_frame(Kind.DEDICATE))
                if not worker.is_alive:
                    raise OSError("its zygote process has ended")
            except BaseException:
                # Also after a cancellation: the fork may already have been requested.
                await self.end_dedicated_worker(worker)
                raise
        except (OSError, UnloadableError, ActorStartError) as error:
            raise WorkerDiedError(title, f"a worker process cannot be started: {error}", begun=False) from error
        return worker

    async def end_dedicated_worker(self, worker: WorkerProxy) -> None:
        """End a dedicated worker, wait for its end, and close its files."""
        await self.end_worker(worker)
        self._dedicated_workers.discard(worker)
        worker.close()

    def run_in_background(self, run_task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `run_task` in a background task, which is cancelled when the pool ends in this event loop."""
        # An empty context: the task outlives its starter, and must not inherit its context variables.
        Context().run(self._background_group.start_soon, run_task)

    def pids(self) -> list[int]:
        """Return the process ids of live workers, except dedicated workers and workers that were asked to end."""
        return sorted(worker.pid for worker in self._pool_workers if worker.is_alive and worker.pid is not None)

    async def take_worker(self, body: Body) -> WorkerProxy:
        """Wait for an idle worker and return it; `body` is the function call that needs the worker."""
        while True:
            if self._outage is not None or self.is_dismissed:
                raise self._unavailable_error(body)
            worker = await self._idle_workers.take()
            # Woken by `fail_waiting_calls`: dismissed, or no zygote runs.
            if worker is None:
                raise self._unavailable_error(body)
            if worker.is_alive and worker.is_silent():
                return worker
            # It has ended, or has sent bytes without a call, which would be taken for the reply of this one. Its place
            # starts another worker.
            with anyio.CancelScope(shield=True):
                await self.request_end(worker, self._options.last_grace)
            # A worker that ended while its reply was read is given back after its place has forgotten it. Nothing
            # else would ever forget it, and it would count as taken for ever.
            if worker.has_ended.is_set():
                self._idle_workers.remove(worker)

    def _unavailable_error(self, body: Body) -> ActorGoneError | WorkerDiedError:
        if self._outage is None or self.is_dismissed:
            return ActorGoneError(body.title, body.call_id, "its pool of processes is closed")
        reason = f"its pool of processes has no workers, and tries to start some: {self._outage}"
        return WorkerDiedError(body.title, reason, begun=False, call_id=body.call_id)

    def offer_worker(self, worker: WorkerProxy) -> None:
        """Make an idle worker available to the next call."""
        if not self.is_dismissed:
            self._idle_workers.put(worker)

    async def request_end(self, worker: WorkerProxy, grace: float | None = None) -> None:
        """Ask the zygote to end a worker and its child processes; a `grace` is at most as long as the pool's grace."""
        if self._zygote is not None:
            max_grace = self._options.grace
            await self._zygote.request_end(worker, max_grace if grace is None else min(grace, max_grace))

    async def end_worker(self, worker: WorkerProxy, grace: float | None = None) -> None:
        """End a worker and wait until it has ended, shielded from cancellation."""
        # If the zygote does not report the end in time, it is killed with all its workers.
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(self._options.grace + _END_REPORT_TIMEOUT):
                await self.request_end(worker, grace)
                await worker.has_ended.wait()
            # After the zygote's death, `receive_reports` marks all its workers as ended, so the second wait is bounded.
            if not worker.has_ended.is_set():
                self._kill_stuck_zygote()
                await worker.has_ended.wait()

    def _kill_stuck_zygote(self) -> None:
        if self._zygote is not None:
            _logger.error("the zygote of a pool of processes does not end its workers, and is killed with all of them")
            self._zygote.kill_with_descendants()

    async def dismiss(self) -> None:
        """End all workers, then the zygote; calls that wait for a worker fail."""
        # At the deadline everything is killed: a stopped zygote (SIGSTOP, job control) cannot end its workers.
        self._end_wait_scope.deadline = anyio.current_time() + self._options.grace + _END_REPORT_TIMEOUT
        self._dismissal.set()
        self._idle_workers.fail_waiting_calls()
        try:
            await self._has_ended.wait()
        except BaseException:
            # Even when cancelled, return only after all processes have ended.
            hurried_deadline = anyio.current_time() + self._options.grace + _HURRIED_TIMEOUT
            self._end_wait_scope.deadline = min(self._end_wait_scope.deadline, hurried_deadline)
            with anyio.CancelScope(shield=True):
                await self._has_ended.wait()
            raise

    async def _end_all_when_dismissed(self) -> None:
        await self._dismissal.wait()
        with self._end_wait_scope:
            workers = [*self._pool_workers, *self._dedicated_workers]
            # All are asked first, so that their graces run concurrently.
            for worker in workers:
                await self.request_end(worker)
            for worker in workers:
                await worker.has_ended.wait()
        if self._end_wait_scope.cancelled_caught:
            self._kill_stuck_zygote()
        self._run_scope.cancel()

    def abandon(self) -> None:
        """Kill the zygote and all workers without waiting. Called after the event loop was closed."""
        if self._zygote is not None:
            self._zygote.kill_blocking()
        for worker in self._pool_workers | self._dedicated_workers:
            worker.abandon()
