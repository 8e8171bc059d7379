"""Code inside a worker process. A worker serves one call at a time; a dedicated worker serves several concurrently.

An async call of a worker runs in its own event loop. A dedicated worker has one event loop for all its calls.
"""

import faulthandler
import json
import os
import pickle
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from io import TextIOWrapper
from os import _exit  # bound at import: user code may replace attributes of `os`
from socket import MSG_PEEK, socket
from typing import Any, NoReturn

from callboard.extend import attach_context
from callboard_actors._engine import _kernel, _main_module
from callboard_actors._engine._frames import (
    BEGUN_COUNTER,
    HEADER,
    MAX_EVENT,
    Kind,
    as_json,
    decode_call,
    decode_header,
    encode_frame,
    receive_frame,
)
from callboard_actors._engine._replies import Reply, ReplyEncoder, limit_reply, reply_encoder, run_call
from callboard_actors.process._settings import Settings

# Before the first call: settings and modules, in the zygote that is forked, or in each new interpreter.


class FatalError(Exception):
    """Raised in a zygote or new interpreter if no worker can be started; the text is the reason."""


def receive_settings(sock: socket) -> Settings:
    """Receive and return the settings, which the parent sends first; raise `FatalError` if the parent has ended."""
    with sock.makefile("rb") as stream:
        message = receive_frame(stream)
    if message is None:
        raise FatalError("whoever started it has gone")
    settings = pickle.loads(message[1])  # noqa: S301 - from our parent
    assert isinstance(settings, Settings)
    return settings


def load_modules(settings: Settings, report_socket: socket) -> None:
    """Import the modules of the option `preload`, which must load, then the optional modules."""
    is_forked = settings.options.start == "fork"
    # Only registered: the main module is loaded when a name of it is needed.
    _main_module.register_main_module(settings.main)
    for name in settings.options.preload:
        try:
            _main_module.load_module(name)
        except Exception as error:
            traceback_text = "".join(traceback.format_exception(error))
            raise FatalError(f"preload={name!r} cannot be imported: {error!r}\n{traceback_text}") from error
        # A fork has only the forking thread. Locks that other threads held stay locked in it for ever.
        if is_forked and threading.active_count() > 1:
            raise FatalError(f"preload={name!r} starts a thread, which a fork would lose; leave it to the workers")
    for module_index, name in enumerate(settings.optional_modules):
        # Before the import, which may end this process in any way, even by a crash in C code.
        report_socket.sendall(encode_frame(Kind.EVENT, 0, as_json({"loading": module_index})))
        try:
            _main_module.load_module(name)
        except SystemExit:
            # Not `raise`: the module wants its process to end, which the pool reads as not loadable.
            os._exit(1)
        except Exception as error:
            # The import runs the main module again, which starts its program: so it would in each worker.
            if _main_module.is_main_unguarded():
                raise FatalError(str(error)) from error
            if not settings.is_quiet:
                sys.stderr.write(f"callboard: {name} is not preloaded in worker processes: {error!r}\n")
        if is_forked and threading.active_count() > 1:
            os._exit(1)  # the pool starts another zygote without this module


_MAX_REASON = 100_000
"""Maximum number of characters in the text of an error that prevents the start of workers."""


def report_failure_and_exit(sock: socket, error: BaseException) -> NoReturn:
    """Report why workers cannot start, by the text of a `FatalError` or a traceback, and end this process."""
    text = str(error) if isinstance(error, FatalError) else "".join(traceback.format_exception(error))
    try:
        # The end of a traceback names the error.
        sock.sendall(encode_frame(Kind.LOST, 0, text[-_MAX_REASON:].encode(errors="replace")))
    finally:
        os._exit(1)  # without a traceback: if the program has ended, it would only appear in some user's terminal


# Calls.

_MAX_CALL_BYTES = 2**40
"""Maximum size of a call in bytes. It is practically unlimited, since workers trust their pool."""


_is_serving = False


def is_worker() -> bool:
    """Return whether this process is a worker of a pool."""
    return _is_serving


def serve_calls(sock: socket, begun_counter_fd: int, settings: Settings) -> None:
    """Serve the calls that arrive on the socket, until the pool closes the socket."""
    global _is_serving
    _is_serving = True
    options = settings.options
    is_confined = options.confine is not None
    _kernel.limit_resources(memory_bytes=options.memory, max_files=options.max_files, is_irrevocable=is_confined)
    # Output printed just before a crash is the most valuable, so it must not stay in a buffer.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a preloaded module may have replaced it
            stream.reconfigure(line_buffering=True)
    faulthandler.enable()
    # Any worker may become a dedicated one, until its first call: the first frame decides.
    first_header = sock.recv(HEADER.size, MSG_PEEK)
    if first_header and decode_header(first_header).kind is Kind.DEDICATE:
        sock.recv(HEADER.size)
        import anyio

        # This never returns: a dedicated worker ends its process.
        anyio.run(_DedicatedWorker(sock, begun_counter_fd, settings).serve_concurrent_calls, backend=settings.backend)
    reply_writer, encoder = _ReplyWriter(sock), reply_encoder(is_plain=is_confined)
    requests = sock.makefile("rb")
    while (request := receive_frame(requests)) is not None:
        call_number, call_payload = request
        # Written before any code of the call runs; unpickling runs some. From here on, the pool treats the call as
        # begun.
        os.pwrite(begun_counter_fd, BEGUN_COUNTER.pack(call_number), 0)
        if options.serves_once:
            os.close(begun_counter_fd)  # untrusted code must not be able to reset the counter
        if options.cpu is not None:
            _kernel.limit_processor_time(options.cpu, is_irrevocable=is_confined)
        send_event = reply_writer.register_call(call_number)
        # A fresh copy: variables that one call sets are invisible to the next.
        outcome = copy_context().run(_run_call_to_reply, call_payload, send_event, settings.backend, encoder)
        kind, reply = limit_reply(*outcome, options.max_result)
        flush_output()
        reply_writer.send_reply(call_number, kind, reply)


def _run_call_to_reply(
    call_payload: bytes, send_event: Callable[[dict[str, Any]], None], backend: str, encoder: ReplyEncoder
) -> Reply:
    context, pickled_call = decode_call(call_payload)
    # `SystemExit` is not caught: it ends the process, as in any program.
    with attach_context(context, send_event):
        reply = run_call(pickled_call, encoder)
        if isinstance(reply, Coroutine):
            import anyio

            try:
                return anyio.run(lambda: reply, backend=backend)
            # Of `anyio.run` itself, such as too many open files for an event loop.
            except Exception as error:
                return encoder.encode_error(error)
    return reply


# A dedicated worker.


class _DedicatedWorker:
    """Dedicated worker: runs concurrent calls on one event loop, for one owner, such as an actor."""

    def __init__(self, sock: socket, begun_counter_fd: int, settings: Settings) -> None:
        self._sock = sock
        self.reply_writer = _ReplyWriter(sock)
        self._begun_counter_fd = begun_counter_fd
        self._max_result = settings.options.max_result
        self.encoder = reply_encoder(is_plain=settings.options.confine is not None)
        self.is_trio = settings.backend == "trio"
        self._calls: dict[int, _RunningCall] = {}

    async def serve_concurrent_calls(self) -> None:
        """Start and cancel calls as the pool requests; end the process when the pool has closed the socket."""
        from callboard_actors._engine._frames import FrameReader
        from callboard_actors._util._own_task import start_background_task
        from callboard_actors.process._socket_reader import Incoming

        reader = FrameReader(Incoming(self._sock), _MAX_CALL_BYTES)
        while True:
            try:
                header, call_payload = await reader.read_frame()
            except ConnectionError:
                flush_output()
                os._exit(0)  # the pool is gone, so running calls have no caller
            if header.kind is Kind.CANCEL:
                if (call := self._calls.get(header.number)) is not None:
                    call.cancel()
                continue
            # Before any code of the call runs. From here on, the pool treats the call as begun.
            os.pwrite(self._begun_counter_fd, BEGUN_COUNTER.pack(header.number), 0)
            self._calls[header.number] = call = _RunningCall(header.number, call_payload, self)
            # In a copy of this context: preloaded modules may have set context variables, such as a decimal precision.
            start_background_task(call.run, "callboard_actors.process call", copy_context())

    def send_reply(self, number: int, kind: Kind, payload: bytes) -> None:
        """Send the reply of a call, and remove the call from the running calls."""
        # Before the reply is sent: a cancellation that arrives after it finds no call.
        del self._calls[number]
        flush_output()
        self.reply_writer.send_reply(number, *limit_reply(kind, payload, self._max_result))


_CANCELLED = Kind.LOST, b"it was cancelled"


class _RunningCall:
    """Running call in a dedicated worker; each call has its own task."""

    def __init__(self, number: int, call_payload: bytes, dedicated_worker: _DedicatedWorker) -> None:
        self._number = number
        self._call_payload = call_payload
        self._dedicated_worker = dedicated_worker
        self._send_event = dedicated_worker.reply_writer.register_call(number)
        # Tells a requested cancellation from one that ends this whole process.
        self._is_cancel_requested = False
        # `None` before the task's first step, which looks at `_is_cancel_requested`: the task is never cancelled before
        # it can reply.
        self._cancel_task: Callable[[], object] | None = None

    def cancel(self) -> None:
        """Cancel the call, because its caller has been cancelled."""
        self._is_cancel_requested = True
        if self._cancel_task is not None:
            self._cancel_task()

    async def run(self) -> None:
        """Run the call in the current task, until it ends or is cancelled."""
        if self._dedicated_worker.is_trio:
            import trio

            with trio.CancelScope() as scope:
                self._cancel_task = scope.cancel
                await self._run_and_reply()
        else:
            import asyncio

            task = asyncio.current_task()
            assert task is not None
            # Not by a scope of anyio: the task is cancelled once, so that it can await its clean-up.
            self._cancel_task = task.cancel
            await self._run_and_reply()

    async def _run_and_reply(self) -> None:
        """Run the call and send exactly one reply, also if the call is cancelled."""
        reply = _CANCELLED
        try:
            if not self._is_cancel_requested:
                context, pickled_call = decode_call(self._call_payload)
                with attach_context(context, self._send_event):
                    outcome = run_call(pickled_call, self._dedicated_worker.encoder)
                    reply = await outcome if isinstance(outcome, Coroutine) else outcome
        except SystemExit as exit_error:
            exit_code = _exit_code(exit_error)
            flush_output()
            os._exit(exit_code)
        except BaseException:
            # Without a request of the owner: the event loop is about to end, or the call raised KeyboardInterrupt or
            # the like. End the process as such an exception would.
            if not self._is_cancel_requested:
                traceback.print_exc()
                flush_output()
                os._exit(1)
            raise
        finally:
            try:
                self._dedicated_worker.send_reply(self._number, *reply)
            except BaseException:
                _exit(1)  # otherwise the caller would wait for its reply for ever


# Replies and events.


class _ReplyWriter:
    """Writer that sends the events and replies of a worker's calls to the pool.

    Events are sent from the beginning of a call until its reply, and dropped afterwards. Events of processes that a
    call has forked are dropped, too: such a process has a copy of the socket.
    """

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self._own_pid = os.getpid()
        # Calls without a reply; an event after the reply would be a protocol error at the pool.
        self._open_calls: set[int] = set()
        # Reentrant: a signal handler that sends an event may interrupt a thread that holds the lock.
        self._lock = threading.RLock()
        self._unsent_frames = deque[bytes]()
        # Guarded by the lock. True only while a thread is in `_send_frame`, which a signal handler may enter again.
        self._is_sending = False

    def register_call(self, call_number: int) -> Callable[[dict[str, Any]], None]:
        """Register a running call, and return the function that sends its events."""
        self._open_calls.add(call_number)
        return partial(self._send_event, call_number)

    def _send_event(self, call_number: int, event: dict[str, Any]) -> None:
        if os.getpid() != self._own_pid:
            return  # a process that the call has forked
        payload = json.dumps(event).encode()
        # Too long an event is sent with shorter texts: each time half as long, until it fits.
        max_length = MAX_EVENT // 4
        while len(payload) > MAX_EVENT:
            shorter = {
                kind: [text[:max_length] if isinstance(text, str) else text for text in values]
                for kind, values in event.items()
            }
            payload = json.dumps(shorter).encode()
            max_length //= 2
        frame_bytes = encode_frame(Kind.EVENT, call_number, payload)
        with self._lock:
            if call_number in self._open_calls:
                self._send_frame(frame_bytes)

    def send_reply(self, call_number: int, kind: Kind, payload: bytes) -> None:
        """Send the reply of a call. Later events of the call are dropped."""
        if os.getpid() != self._own_pid:
            os._exit(0)  # a process that the call has forked has returned from the call, and must not reply
        with self._lock:
            self._open_calls.discard(call_number)
            self._send_frame(encode_frame(kind, call_number, payload))

    def _send_frame(self, frame_bytes: bytes) -> None:
        self._unsent_frames.append(frame_bytes)
        if self._is_sending:
            return  # in a signal handler: the interrupted `_send_frame` completes its frame first, then sends this one
        self._is_sending = True
        try:
            while self._unsent_frames:
                self._sock.sendall(self._unsent_frames.popleft())
        finally:
            self._is_sending = False


# The end of the process.


def run_and_exit(function: Callable[[], None]) -> NoReturn:
    """Run `function`, then exit with the interpreter's usual exit code, but without the interpreter's finalization."""
    exit_code = 1
    try:
        function()
        exit_code = 0
    except SystemExit as exit_error:
        exit_code = _exit_code(exit_error)
    except BaseException:
        traceback.print_exc()
    finally:
        flush_output()
        # No finalization: `atexit` handlers and other cleanup inherited by a fork belong to the zygote.
        os._exit(exit_code)


def _exit_code(exit_error: SystemExit) -> int:
    """Return the exit code that the interpreter uses for a `SystemExit`; if it has a text, print the text to stderr."""
    if exit_error.code is None:
        return 0
    if isinstance(exit_error.code, int):
        return exit_error.code & 0xFF
    sys.stderr.write(f"{exit_error.code}\n")  # as the interpreter does
    return 1


def flush_output() -> None:
    """Flush stdout and stderr; ignore errors, because user code may have closed them."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # user code may have closed or replaced the stream
            stream.flush()
