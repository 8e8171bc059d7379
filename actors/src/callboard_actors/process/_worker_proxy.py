"""Pool's objects for a worker process (`WorkerProxy`) and for a dedicated worker process (`SeatProxy`)."""

import itertools
import os
import pickle
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import anyio

from callboard import ActorStartError
from callboard.extend import Body, NonsenseError, dispatch_event, inject_context
from callboard_actors._engine._codec import pack_call
from callboard_actors._engine._errors import REPORT_TIMEOUT, WorkerDiedError, describe_end, is_self_inflicted
from callboard_actors._engine._frames import (
    BEGUN_COUNTER,
    OUTCOMES,
    FrameReader,
    GarbageError,
    Header,
    Kind,
    encode_call,
    encode_frame,
    from_json,
)
from callboard_actors._engine._kernel import make_shared_file
from callboard_actors._engine._open_call import OpenCall
from callboard_actors._util._own_task import run_to_end
from callboard_actors.process._plain_codec import decode_worker_reply
from callboard_actors.process._settings import PoolOptions, Settings
from callboard_actors.process._socket_reader import Incoming

_CHUNK = 64 * 1024
LONGEST_REASON = 1024 * 1024
"""Maximum size in bytes of the text, with a traceback, that says why a zygote or new interpreter cannot start."""


class BrokenError(Exception):
    """Raised if a worker cannot finish its call.

    `reason` is `None` if the worker has closed its socket; its exit status then tells the reason.
    """

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(reason)


class UnloadableError(Exception):
    """Raised if a process ended while it loaded an optional module."""

    def __init__(self, module: str) -> None:
        self.module = module
        super().__init__(module)


async def until_loaded(reader: FrameReader, settings: Settings, process_noun: str) -> None:
    """Wait until a zygote or a new interpreter has loaded its modules; `process_noun` names it in errors."""
    loading_module = None
    try:
        header, payload = await reader.read_frame()
        while header.kind is Kind.EVENT:
            loading_module = settings.optional_modules[from_json(payload)["loading"]]
            header, payload = await reader.read_frame()
    except ConnectionError:
        # The process ended between this report and the next one, so this module has ended it.
        if loading_module is not None:
            raise UnloadableError(loading_module) from None
        raise ActorStartError("Processes", f"{process_noun} ended at once; what it says is on stderr") from None
    if header.kind is Kind.LOST:
        raise ActorStartError("Processes", payload.decode(errors="replace"), is_permanent=True)


class WorkerProxy:
    """Pool's object for a worker process: its sockets and files, its calls, and its exit status.

    Its sockets and files are closed when it has ended and no call uses them any more.

    Args:
        max_output: bytes kept of its output; the oldest are dropped.
        is_trusted: trust the begun counter that the worker writes. Code in a confined worker could change the counter,
            so there a call counts as begun from the first byte that was sent.
    """

    _numbers = itertools.count(1)

    def __init__(self, max_output: int, *, is_trusted: bool = True) -> None:
        self.is_trusted = is_trusted
        self.number = next(self._numbers)
        self.pid: int | None = None
        """Process id of the worker; `None` before the start, and for a worker that was never started."""
        self.exitcode: int | None = None
        self.fork_errno: int | None = None
        """`errno` of the failed start of the worker process; `None` if the start has not failed."""
        self.is_ending = False
        self.is_ready = False
        """`True` once the worker has loaded its modules, so that it can serve calls."""
        self.call_count = 0
        self.has_left_pool = anyio.Event()
        """Event that is set when the worker leaves the pool: it has ended, or becomes a dedicated worker."""
        self.has_released_output = anyio.Event()
        """Event that is set when no task of the pool reads the worker's output any more."""
        self.start_settled = anyio.Event()
        """Event that is set when the worker has started, or when its start has failed."""
        self.has_ended = anyio.Event()
        # While true, `close` only sets `_is_closing`, and `release` closes: a call may still read from the files below.
        self._is_in_use = False
        self._is_closing = False
        self._is_closed = False
        # Last value read from the begun counter, for questions after the file was closed.
        self._last_begun = 0
        # Greatest number of a call of which at least one byte was sent.
        self._last_sent_number = 0
        self._max_output = max_output
        self._recent_output = bytearray()
        """Last bytes of the worker's output; at most one chunk more than `max_output` at a time."""
        with ExitStack() as stack:  # close everything again if one of the files cannot be opened
            self._sock, self._worker_end_sock = socket.socketpair()
            stack.callback(self._worker_end_sock.close)
            stack.callback(self._sock.close)
            self._sock.setblocking(False)
            self._output_fd, self._worker_output_fd = os.pipe()
            stack.callback(os.close, self._output_fd)
            stack.callback(os.close, self._worker_output_fd)
            os.set_blocking(self._output_fd, False)
            # The begun counter is a file, not a message: it can be read after the worker has died.
            self._begun_counter_fd = make_shared_file(BEGUN_COUNTER.size)
            stack.callback(os.close, self._begun_counter_fd)
            stack.pop_all()

    def worker_fds(self) -> list[int]:
        """Return the descriptors for the worker: socket, output pipe, and a file for the current call's number."""
        return [self._worker_end_sock.fileno(), self._worker_output_fd, self._begun_counter_fd]

    def record_start(self, pid: int | None) -> None:
        """Record that the process `pid` has started, and close the worker's ends of socket and pipe in this process."""
        self.pid = pid
        self._close_worker_ends()
        self.start_settled.set()

    def _close_worker_ends(self) -> None:
        """Close the worker's ends of the socket and of the output pipe in this process."""
        # Only after the worker has received them: macOS loses descriptors in transit that are open nowhere. They must
        # be closed then, or the end of the worker would not be seen as end of file.
        if self._worker_end_sock.fileno() >= 0:
            self._worker_end_sock.close()
            os.close(self._worker_output_fd)

    def record_end(self, exitcode: int | None) -> None:
        """Record that the process has ended; `exitcode` is `None` if unknown."""
        self.exitcode = exitcode
        self._close_worker_ends()
        self.has_ended.set()
        self.has_left_pool.set()
        self.start_settled.set()
        # A forked child of the worker may hold a copy of its socket. Without a shutdown, readers would wait for that
        # child.
        with suppress(OSError):  # the worker has closed its end
            self._sock.shutdown(socket.SHUT_RDWR)

    @property
    def is_alive(self) -> bool:
        """`True` if the process is ready, has not ended, and was not asked to end."""
        return self.is_ready and not self.has_ended.is_set() and not self.is_ending

    def is_silent(self) -> bool:
        """Return whether there is nothing to read from the worker's socket: no unexpected bytes, and no end of file."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        return False

    def last_begun(self) -> int:
        """Return the number of the last call that has begun or may have begun; 0 without one, also after the end."""
        if not self.is_trusted:
            return self._last_sent_number
        if not self._is_closed:
            data = os.pread(self._begun_counter_fd, BEGUN_COUNTER.size, 0)
            self._last_begun = int(BEGUN_COUNTER.unpack(data)[0]) if len(data) == BEGUN_COUNTER.size else 0
        return self._last_begun

    async def until_loaded(self, settings: Settings) -> None:
        """Send the settings to a worker's new interpreter, and wait until the interpreter has loaded its modules."""
        with suppress(ConnectionError):  # it has ended; `until_loaded` finds out why
            await self.send(encode_frame(Kind.CALL, 0, pickle.dumps(settings)))
        # Trusted here: no call has run in it.
        await until_loaded(self.make_reader(LONGEST_REASON, only_number=0), settings, "a new interpreter")

    async def exchange(self, call_number: int, call_payload: bytes, max_result: int) -> tuple[Kind, bytes]:
        """Send a call to the worker; return the reply's kind and payload."""
        # Drop output that was printed between two calls, so that errors show only this call's.
        self._read_output()
        self._recent_output.clear()
        self.call_count += 1
        frame_reader = self.make_reader(max_result, only_number=call_number)
        try:
            await self.send(encode_frame(Kind.CALL, call_number, call_payload), call_number)
            while True:
                header, payload = await frame_reader.read_frame()
                if header.kind is not Kind.EVENT:
                    break
                deliver_event(payload)
            # Bytes after the reply would be taken for the reply of the next call.
            if frame_reader.has_more:
                raise GarbageError("something follows it")
        except ConnectionError:
            raise BrokenError from None  # the exit status tells why
        except GarbageError as error:
            raise BrokenError(f"its worker process sent what is no reply: {error}") from None
        return header.kind, payload

    def make_reader(self, max_payload: int, only_number: int | None = None) -> FrameReader:
        """Return a reader of the worker's frames: of all calls, or only of the call `only_number`."""
        kinds = OUTCOMES | {Kind.EVENT}
        return FrameReader(
            Incoming(self._sock), max_payload, limit_text="max_result is {}", only_number=only_number, kinds=kinds
        )

    async def send(self, frame_bytes: bytes, call_number: int = 0) -> None:
        """Write frames to the worker: of a call, or with `call_number` 0; only one task may write at a time."""
        unsent_bytes = memoryview(frame_bytes)
        while unsent_bytes:
            try:
                unsent_bytes = unsent_bytes[self._sock.send(unsent_bytes) :]
                # After each partial send: a cancellation in the wait below must find the call counted as sent.
                self._last_sent_number = max(self._last_sent_number, call_number)
            except BlockingIOError:
                await anyio.wait_writable(self._sock)

    async def collect_output(self) -> None:
        """Read the worker's stdout and stderr until they are closed, so that the worker never blocks on a full pipe."""
        while not self._is_closed:
            await anyio.wait_readable(self._output_fd)
            if not self._read_output(max_reads=1):
                return

    def _read_output(self, *, max_reads: int = 16) -> bool:
        """Read at most `max_reads` chunks of the available output; return `False` at the end of the output."""
        if self._is_closed:
            return False
        # Bounded: a worker that writes without pause must not hold the event loop.
        with suppress(BlockingIOError):  # everything that was available has been read
            for _ in range(max_reads):
                data = os.read(self._output_fd, _CHUNK)
                if not data:
                    return False
                self._recent_output += data
                del self._recent_output[: -self._max_output]
        return True

    def recent_output(self) -> str:
        """Return the last part of the worker's stdout and stderr since the current call began, as text."""
        self._read_output()
        return self._recent_output.decode(errors="replace")

    def death_error(self, body: Body, reason: str, *, begun: bool, recurs: bool) -> WorkerDiedError:
        """Return the `WorkerDiedError` for a call that ended because this worker has ended."""
        return WorkerDiedError(
            body.title,
            reason,
            begun=begun,
            call_id=body.call_id,
            exitcode=self.exitcode,
            pid=self.pid,
            output=self.recent_output(),
            recurs=recurs,
        )

    def hold_open(self) -> None:
        """Keep the files of the worker process open until `release()`, even if `close()` is called earlier."""
        self._is_in_use = True

    def release(self) -> None:
        """Undo `hold_open()`; close the worker's files if `close()` was called meanwhile."""
        self._is_in_use = False
        if self._is_closing:
            self._close_files()

    def close(self) -> None:
        """Close the files of the worker process now, or at `release()` if they are in use."""
        self._is_closing = True
        if not self._is_in_use:
            self._close_files()

    def abandon(self) -> None:
        """Close the files of the worker process at once, even if in use. For a pool whose event loop is closed."""
        self._close_worker_ends()
        self._close_files()

    def _close_files(self) -> None:
        if self._is_closed:
            return
        # Read and stored for the last time: after the close, these descriptor numbers may belong to other files of this
        # process.
        self._read_output()
        self.last_begun()
        self._is_closed = True
        self._sock.close()
        os.close(self._output_fd)
        os.close(self._begun_counter_fd)


def deliver_event(payload: bytes) -> None:
    """Decode an event of a call and dispatch it in the call's context; raise `GarbageError` for an invalid event."""
    event = from_json(payload)
    try:
        dispatch_event(event)
    except NonsenseError as error:  # only this one: another ValueError may come from an observer
        raise GarbageError(str(error)) from error


# Dedicated worker: concurrent calls of one owner, with replies in any order.

_MAX_JOINED_BYTES = 256 * 1024
"""Number of bytes after which no further frame is joined to a write."""
_CONNECTION_LOSS_ERRORS = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.BusyResourceError, OSError)


class SeatProxy:
    """Pool's object for the dedicated worker process of one owner, such as an actor; see `callboard.Engine.seat`."""

    def __init__(
        self,
        title: str,
        worker: WorkerProxy,
        end_worker: Callable[[WorkerProxy, float | None], Awaitable[None]],
        options: PoolOptions,
    ) -> None:
        self._title = title
        self._worker = worker
        self._end_worker = end_worker
        self._options = options
        self._numbers = itertools.count(1)
        self._reader = worker.make_reader(options.max_result)
        self._calls: dict[int, OpenCall[bytes]] = {}
        # Frames that are not written yet, each with its call or, for a cancellation, with `None`.
        self._unsent_frames = deque[tuple[bytes, OpenCall[bytes] | None]]()
        self._has_frames = anyio.Event()
        # Why this side ended the worker; decided before its exit code is known, and stronger than it.
        self._break_reason: str | None = None
        # Why the worker ended. Set by `run_until_ended` at the very end, so it also says that no call can be made.
        self._end_reason: str | None = None
        self._recurs = False
        self.has_ended = anyio.Event()
        """Event that is set when the worker has ended, and no task uses its socket any more."""

    async def until_ended(self) -> str:
        """Wait until the worker has ended for any cause; return the reason as text."""
        await self.has_ended.wait()
        assert self._end_reason is not None
        return self._end_reason

    async def run_body(self, body: Body, /) -> Any:
        """Run an async function in the worker, concurrently with other calls; see `callboard.extend.Seat`."""
        if self._end_reason is not None or self._worker.is_ending:
            raise self._death_error(body, begun=False)
        call_payload = encode_call(inject_context(), pack_call(body))
        # No await from here to the `try`: a call that is registered is also ended. A number is never reused, so a late
        # frame cannot reach another call.
        number = next(self._numbers)
        self._calls[number] = call = OpenCall[bytes]()
        self._enqueue_frame(encode_frame(Kind.CALL, number, call_payload), call)
        try:
            if body.on_begin is not None:
                body.on_begin()  # in the `try`: after its error, the call must not stay registered
            await call.deliver_events_until_over(deliver_event)
        except GarbageError as error:
            await self._break_worker(f"its worker process sent what is no reply: {error}")
            # The reply of a broken worker is its death, which has to be known before the error is built.
            with anyio.CancelScope(shield=True):
                await self.has_ended.wait()
            call.reply = None
        except BaseException:
            # In a task of its own: the call is ended even if this task is cancelled by force.
            await run_to_end(partial(self._cancel_call, number, call, body), "callboard_actors.process ending")
            raise
        if call.reply is None:
            # Calls are begun in the order of their numbers, so a greater begun counter proves that this call began,
            # too. Code in a confined worker could change the counter.
            begun = call.is_sent and (not self._worker.is_trusted or self._worker.last_begun() >= number)
            raise self._death_error(body, begun=begun)
        kind, reply = call.reply
        output = "" if kind is Kind.VALUE else self._worker.recent_output()
        return await decode_worker_reply(kind, reply, body, is_plain=self._options.confine is not None, output=output)

    async def _cancel_call(self, number: int, call: OpenCall[bytes], body: Body) -> None:
        """Cancel a call in the worker and wait for its end; end the worker if the call exceeds its grace."""
        if call.is_over:
            return
        if not call.is_sent:
            # Still queued: `_write_frames` skips it, so there is nothing to wait for.
            del self._calls[number]
            call.lose("it was cancelled")
            return
        # In the same queue as calls: the worker never reads a cancellation before its call.
        self._enqueue_frame(encode_frame(Kind.CANCEL, number))
        grace = self._options.grace if body.grace is None else min(body.grace, self._options.grace)
        with anyio.move_on_after(grace, shield=True):
            await call.until_over()
        if not call.is_over:
            reason = f"{body.title!r} had been cancelled there and did not end within its grace"
            await self._break_worker(reason, is_fault_of_worker=False)

    def _death_error(self, body: Body, *, begun: bool) -> WorkerDiedError:
        reason = self._end_reason or f"the worker process of {self._title!r} is ended"
        return self._worker.death_error(body, reason, begun=begun, recurs=self._recurs)

    async def run_until_ended(self) -> None:
        """Read from the worker and write to it until it has ended; then end its unanswered calls with an error."""
        # Until `release` below, even if the pool closes the worker before.
        self._worker.hold_open()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._worker.collect_output)
                group.start_soon(self._write_frames)
                group.start_soon(self._read_frames)
                await self._worker.has_ended.wait()
                group.cancel_scope.cancel()
        finally:
            # Also if this task is cancelled: callers would otherwise wait for ever.
            worker = self._worker
            if self._break_reason is not None:
                self._end_reason = self._break_reason
            elif worker.is_ending:
                self._end_reason = "its worker process was ended with its block, or with its pool"
            else:
                self._end_reason = describe_end(worker.exitcode, cpu_seconds=None)
                self._recurs = is_self_inflicted(worker.exitcode)
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call.lose(self._end_reason)
            worker.release()
            self.has_ended.set()

    def _enqueue_frame(self, frame_bytes: bytes, call: OpenCall[bytes] | None = None) -> None:
        self._unsent_frames.append((frame_bytes, call))
        self._has_frames.set()

    async def _write_frames(self) -> None:
        # After the end of the process, the replies that it sent before are still read.
        with suppress(*_CONNECTION_LOSS_ERRORS):  # `_read_frames` reports the loss
            while True:
                # A worker that was asked to end gets no further call: the call would begin in its last moments.
                while self._unsent_frames and not self._worker.is_ending:
                    await self._worker.send(self._join_queued_frames())
                self._has_frames = anyio.Event()
                await self._has_frames.wait()

    def _join_queued_frames(self) -> bytes:
        """Remove the next frames from the queue, and return their bytes, joined for one write of bounded size."""
        frames: list[bytes] = []
        byte_count = 0
        while self._unsent_frames and byte_count < _MAX_JOINED_BYTES:
            frame_bytes, call = self._unsent_frames.popleft()
            if call is not None and call.is_over:
                continue
            if call is not None:
                # Before the write: a write that is cancelled or fails may have sent any part of the frame.
                call.is_sent = True
            frames.append(frame_bytes)
            byte_count += len(frame_bytes)
        return b"".join(frames)

    async def _read_frames(self) -> None:
        """Receive events and replies until the process closes its socket, or sends an invalid frame."""
        try:
            with suppress(*_CONNECTION_LOSS_ERRORS):
                while True:
                    self._handle_frame(*await self._reader.read_frame())
        except GarbageError as error:  # ends the connection: the bytes after it cannot be trusted to be frames
            await self._break_worker(f"its worker process sent what is no reply: {error}")
            return
        # Normally the worker has ended and the zygote's report is on its way, with the exit code as the better reason.
        with anyio.move_on_after(REPORT_TIMEOUT):
            await self._worker.has_ended.wait()
        if not self._worker.has_ended.is_set():
            await self._break_worker("its worker process closed its socket")

    def _handle_frame(self, header: Header, payload: bytes) -> None:
        # A cancelled call stays in the table until its reply, so a frame for no call is no late one.
        call = self._calls.get(header.number)
        if call is None or not call.is_sent:
            raise GarbageError("it is for no call")
        if header.kind is Kind.EVENT:
            call.add_event(payload)
        else:
            call.end((header.kind, payload))
            del self._calls[header.number]

    async def _break_worker(self, reason: str, *, is_fault_of_worker: bool = True) -> None:
        """Store the reason why the worker cannot be used any longer, end the worker, and wait for its end."""
        # If the worker's own code is not to blame, the worker is ended without a grace.
        # The first reason counts: later ones are consequences of it.
        if self._break_reason is None and not self._worker.is_ending:
            self._break_reason, self._recurs = reason, is_fault_of_worker
        await self._end_worker(self._worker, None if is_fault_of_worker else 0.0)
        with anyio.CancelScope(shield=True):
            await self._worker.has_ended.wait()
