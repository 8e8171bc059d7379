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


def load(settings: Settings, report: socket) -> None:
    """Import the modules of the option `preload`, which must load, then the optional modules."""
    is_forked = settings.terms.start == "fork"
    # Only registered: the main module is loaded when a name of it is needed.
    _main_module.register_main_module(settings.main)
    for name in settings.terms.preload:
        try:
            _main_module.load_module(name)
        except Exception as error:
            traceback_text = "".join(traceback.format_exception(error))
            raise FatalError(f"preload={name!r} cannot be imported: {error!r}\n{traceback_text}") from error
        # A fork has only the forking thread. Locks that other threads held stay locked in it for ever.
        if is_forked and threading.active_count() > 1:
            raise FatalError(f"preload={name!r} starts a thread, which a fork would lose; leave it to the workers")
    for index, name in enumerate(settings.optional_modules):
        # Before the import, which may end this process in any way, even by a crash in C code.
        report.sendall(encode_frame(Kind.EVENT, 0, as_json({"loading": index})))
        try:
            _main_module.load_module(name)
        except SystemExit:
            # Not `raise`: the module wants its process to end, which the pool reads as not loadable.
            os._exit(1)
        except Exception as error:
            # The import runs the main module again, which starts its program: so it would in each worker.
            if _main_module.is_main_unguarded():
                raise FatalError(str(error)) from error
            if not settings.quiet:
                sys.stderr.write(f"callboard: {name} is not preloaded in worker processes: {error!r}\n")
        if is_forked and threading.active_count() > 1:
            os._exit(1)  # the pool starts another zygote without this module


_LONGEST_REASON = 100_000
"""Maximum number of characters in the text of an error that prevents the start of workers."""


def fail(sock: socket, error: BaseException) -> NoReturn:
    """Report why workers cannot start, by the text of a `FatalError` or a traceback, and end this process."""
    text = str(error) if isinstance(error, FatalError) else "".join(traceback.format_exception(error))
    try:
        # The end of a traceback names the error.
        sock.sendall(encode_frame(Kind.LOST, 0, text[-_LONGEST_REASON:].encode(errors="replace")))
    finally:
        os._exit(1)  # without a traceback: if the program has ended, it would only appear in some user's terminal


# Calls.

_MAX_CALL = 2**40
"""Maximum size of a call in bytes. It is practically unlimited, since workers trust their pool."""


_is_serving = False


def is_worker() -> bool:
    """Return whether this process is a worker of a pool."""
    return _is_serving


def serve(sock: socket, begun_counter: int, settings: Settings) -> None:
    """Serve the calls that arrive on the socket, until the pool closes the socket."""
    global _is_serving
    _is_serving = True
    terms = settings.terms
    is_confined = terms.confine is not None
    _kernel.limit_resources(memory_bytes=terms.memory, max_files=terms.max_files, is_irrevocable=is_confined)
    # Output printed just before a crash is the most valuable, so it must not stay in a buffer.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a preloaded module may have replaced it
            stream.reconfigure(line_buffering=True)
    faulthandler.enable()
    # Any worker may become a dedicated one, until its first call: the first frame decides.
    first = sock.recv(HEADER.size, MSG_PEEK)
    if first and decode_header(first).kind is Kind.DEDICATE:
        sock.recv(HEADER.size)
        import anyio

        # This never returns: a dedicated worker ends its process.
        anyio.run(_Seat(sock, begun_counter, settings).live, backend=settings.backend)
    reply_writer, encoder = _ReplyWriter(sock), reply_encoder(is_plain=is_confined)
    requests = sock.makefile("rb")
    while (request := receive_frame(requests)) is not None:
        number, body = request
        # Written before any code of the call runs; unpickling runs some. From here on, the pool treats the call as
        # begun.
        os.pwrite(begun_counter, BEGUN_COUNTER.pack(number), 0)
        if terms.serves_once:
            os.close(begun_counter)  # untrusted code must not be able to reset the counter
        if terms.cpu is not None:
            _kernel.limit_processor_time(terms.cpu, is_irrevocable=is_confined)
        tell = reply_writer.begin(number)
        # A fresh copy: variables that one call sets are invisible to the next.
        outcome = copy_context().run(_outcome, body, tell, settings.backend, encoder)
        kind, reply = limit_reply(*outcome, terms.max_result)
        flush()
        reply_writer.reply(number, kind, reply)


def _outcome(call: bytes, tell: Callable[[dict[str, Any]], None], backend: str, encoder: ReplyEncoder) -> Reply:
    context, pickled = decode_call(call)
    # `SystemExit` is not caught: it ends the process, as in any program.
    with attach_context(context, tell):
        reply = run_call(pickled, encoder)
        if isinstance(reply, Coroutine):
            import anyio

            try:
                return anyio.run(lambda: reply, backend=backend)
            except Exception as error:  # of `anyio.run` itself, such as too many open files for an event loop
                return encoder.encode_error(error)
    return reply


# A dedicated worker.


class _Seat:
    """Dedicated worker: runs concurrent calls on one event loop, for one owner, such as an actor."""

    def __init__(self, sock: socket, begun_counter: int, settings: Settings) -> None:
        self._sock = sock
        self.reply_writer = _ReplyWriter(sock)
        self._begun_counter = begun_counter
        self._max_result = settings.terms.max_result
        self.encoder = reply_encoder(is_plain=settings.terms.confine is not None)
        self.is_trio = settings.backend == "trio"
        self._calls: dict[int, _Call] = {}

    async def live(self) -> None:
        """Start and cancel calls as the pool requests; end the process when the pool has closed the socket."""
        from callboard_actors._engine._frames import FrameReader
        from callboard_actors._util._own_task import start_background_task
        from callboard_actors.process._socket_reader import Incoming

        reader = FrameReader(Incoming(self._sock), _MAX_CALL)
        while True:
            try:
                header, body = await reader.read_frame()
            except ConnectionError:
                flush()
                os._exit(0)  # the pool is gone, so running calls have no caller
            if header.kind is Kind.CANCEL:
                if (call := self._calls.get(header.number)) is not None:
                    call.end()
                continue
            # Before any code of the call runs. From here on, the pool treats the call as begun.
            os.pwrite(self._begun_counter, BEGUN_COUNTER.pack(header.number), 0)
            self._calls[header.number] = call = _Call(header.number, body, self)
            # In a copy of this context: preloaded modules may have set context variables, such as a decimal precision.
            start_background_task(call.run, "callboard_actors.process call", copy_context())

    def answer(self, number: int, kind: Kind, body: bytes) -> None:
        """Send the reply of a call, and remove the call from the running calls."""
        # First: a cancellation that arrives after the reply finds no call.
        del self._calls[number]
        flush()
        self.reply_writer.reply(number, *limit_reply(kind, body, self._max_result))


_CANCELLED = Kind.LOST, b"it was cancelled"


class _Call:
    """Running call in a dedicated worker; each call has its own task."""

    def __init__(self, number: int, call: bytes, seat: _Seat) -> None:
        self._number = number
        self._call = call
        self._seat = seat
        self._send_event = seat.reply_writer.begin(number)
        # Tells a requested cancellation from one that ends this whole process.
        self._is_to_end = False
        # `None` before the task's first step, which looks at `_is_to_end`: it is never cancelled before it can reply.
        self._cancel: Callable[[], object] | None = None

    def end(self) -> None:
        """Cancel the call, because its caller has been cancelled."""
        self._is_to_end = True
        if self._cancel is not None:
            self._cancel()

    async def run(self) -> None:
        """Run the call in the current task, until it ends or is cancelled."""
        if self._seat.is_trio:
            import trio

            with trio.CancelScope() as scope:
                self._cancel = scope.cancel
                await self._reply()
        else:
            import asyncio

            task = asyncio.current_task()
            assert task is not None
            # Not by a scope of anyio: the task is cancelled once, so that it can await its clean-up.
            self._cancel = task.cancel
            await self._reply()

    async def _reply(self) -> None:
        """Run the call and send exactly one reply, also if the call is cancelled."""
        reply = _CANCELLED
        try:
            if not self._is_to_end:
                context, pickled = decode_call(self._call)
                with attach_context(context, self._send_event):
                    outcome = run_call(pickled, self._seat.encoder)
                    reply = await outcome if isinstance(outcome, Coroutine) else outcome
        except SystemExit as end:
            code = _exit_code(end)
            flush()
            os._exit(code)
        except BaseException:
            # Without a request of the owner: the event loop is about to end, or the call raised KeyboardInterrupt or
            # the like. End the process as such an exception would.
            if not self._is_to_end:
                traceback.print_exc()
                flush()
                os._exit(1)
            raise
        finally:
            try:
                self._seat.answer(self._number, *reply)
            except BaseException:
                _exit(1)  # without a reply the caller would wait for ever


# Replies and events.


class _ReplyWriter:
    """Writer that sends the events and replies of a worker's calls to the pool.

    Events are sent from the beginning of a call until its reply, and dropped afterwards. Events of processes that a
    call has forked are dropped, too: such a process has a copy of the socket.
    """

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self._pid = os.getpid()
        # Calls without a reply; an event after the reply would be a protocol error at the pool.
        self._open: set[int] = set()
        # Reentrant: a signal handler that sends an event may interrupt a thread that holds the lock.
        self._lock = threading.RLock()
        self._due = deque[bytes]()
        # Guarded by the lock. True only while a thread is in `_send`, which the handler of a signal may enter again.
        self._sending = False

    def begin(self, number: int) -> Callable[[dict[str, Any]], None]:
        """Register a running call, and return the function that sends its events."""
        self._open.add(number)
        return partial(self._send_event, number)

    def _send_event(self, number: int, event: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            return
        body = json.dumps(event).encode()
        max_length = MAX_EVENT // 4
        while len(body) > MAX_EVENT:
            shorter = {
                kind: [text[:max_length] if isinstance(text, str) else text for text in values]
                for kind, values in event.items()
            }
            body = json.dumps(shorter).encode()
            max_length //= 2
        data = encode_frame(Kind.EVENT, number, body)
        with self._lock:
            if number in self._open:
                self._send(data)

    def reply(self, number: int, kind: Kind, body: bytes) -> None:
        """Send the reply of a call. Later events of the call are dropped."""
        if os.getpid() != self._pid:
            os._exit(0)  # a process forked by the call has returned from it; the call is not its own
        with self._lock:
            self._open.discard(number)
            self._send(encode_frame(kind, number, body))

    def _send(self, data: bytes) -> None:
        self._due.append(data)
        if self._sending:
            return  # in a signal handler: the interrupted `_send` completes its frame first, then sends this one
        self._sending = True
        try:
            while self._due:
                self._sock.sendall(self._due.popleft())
        finally:
            self._sending = False


# The end of the process.


def end_after(function: Callable[[], None]) -> NoReturn:
    """Run `function`, then exit with the interpreter's usual exit code, but without the interpreter's finalization."""
    code = 1
    try:
        function()
        code = 0
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:
        traceback.print_exc()
    finally:
        flush()
        # No finalization: `atexit` handlers and other cleanup inherited by a fork belong to the zygote.
        os._exit(code)


def _exit_code(end: SystemExit) -> int:
    """Return the exit code that the interpreter uses for a `SystemExit`; if it has a text, print the text to stderr."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    sys.stderr.write(f"{end.code}\n")  # as the interpreter does
    return 1


def flush() -> None:
    """Flush stdout and stderr; ignore errors, because user code may have closed them."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # user code may have closed or replaced the stream
            stream.flush()
