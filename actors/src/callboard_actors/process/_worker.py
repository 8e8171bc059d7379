"""Worker, from within: serves one call after another until its socket is closed.

Each async call runs in its own event loop.
"""

import faulthandler
import os
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from io import TextIOWrapper
from socket import socket
from typing import Any, Protocol

from callboard.extend import attached_context
from callboard_actors._engine import _kernel
from callboard_actors._engine._frames import BEGUN_COUNTER, Kind, parts_of, receive_frame
from callboard_actors._engine._pickles import loads
from callboard_actors._engine._variables import set_all
from callboard_actors.process._exits import flush
from callboard_actors.process._reply_writer import ReplyWriter
from callboard_actors.process._sent_file import set_sent_file
from callboard_actors.process._settings import Settings

Tell = Callable[[dict[str, Any]], None]


class Replies(Protocol):
    """Encoding of replies."""

    @property
    def returned(self) -> Callable[[Any], tuple[Kind, bytes]]:
        """Function that encodes a result."""
        ...

    @property
    def raised(self) -> Callable[[Exception], tuple[Kind, bytes]]:
        """Function that encodes an exception."""
        ...


def serve(sock: socket, begun_counter: int, settings: Settings) -> None:
    """Answer calls; return when the pool has closed the socket."""
    prepare(settings)
    reply_writer, replies = ReplyWriter(sock), replies_of(settings)
    files: list[int] = []
    while (request := receive_frame(sock, files)) is not None:
        number, body = request
        # Written before any code of the call runs; unpickling runs some. From here on, the pool treats the call as
        # begun.
        os.pwrite(begun_counter, BEGUN_COUNTER.pack(number), 0)
        if settings.terms.serves_once:
            os.close(begun_counter)  # untrusted code must not be able to reset the counter
        if settings.terms.cpu is not None:
            _kernel.limit_processor_time(settings.terms.cpu, for_good=settings.terms.confine is not None)
        tell = reply_writer.begin(number)
        # A fresh copy: variables that one call sets are invisible to the next.
        context = copy_context()
        for fd in files:
            context.run(set_sent_file, fd)
        outcome = context.run(_outcome, body, tell, settings.backend, replies)
        while files:
            os.close(files.pop())
        kind, reply = bounded(*outcome, settings.terms.max_result)
        flush()
        reply_writer.reply(number, kind, reply)


def prepare(settings: Settings) -> None:
    """Apply the limits of the pool to this process, once before its first call."""
    _kernel.leave_no_core(for_good=settings.terms.confine is not None)
    if settings.terms.memory is not None:
        _kernel.limit_memory(settings.terms.memory)
    if (files := settings.terms.most_files) is not None:
        _kernel.limit_files(files)
    if settings.terms.nice is not None:
        os.nice(settings.terms.nice)
    # Output printed just before a crash is the most valuable, so it must not stay in a buffer.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a preloaded module may have replaced it
            stream.reconfigure(line_buffering=True)
    faulthandler.enable()


def _outcome(call: bytes | bytearray, tell: Tell, backend: str, replies: Replies) -> tuple[Kind, bytes]:
    given, pickled = parts_of(call)
    # `SystemExit` is not caught: it ends the process, as in any program.
    try:
        with attached_context(given, tell):
            fn, args, kwargs, variables = loads(pickled)
            set_all(variables)
            value = fn(*args, **kwargs)
            if isinstance(value, Coroutine):
                value = _awaited(value, backend)
    except Exception as error:
        return replies.raised(without_own_frame(error))
    return replies.returned(value)


def replies_of(settings: Settings) -> Replies:
    """Return the encoding of replies; its module was preloaded by the zygote."""
    if settings.terms.confine is None:
        from callboard_actors._engine import _pickled_replies

        return _pickled_replies
    from callboard_actors._engine import _plain_replies

    return _plain_replies


def without_own_frame(error: Exception) -> Exception:
    """Drop the first frame of the traceback, which is callboard's."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    return error


def _awaited(coroutine: Coroutine[Any, Any, Any], backend: str) -> Any:
    import anyio

    async def main() -> Any:
        return await coroutine

    return anyio.run(main, backend=backend)


def bounded(kind: Kind, body: bytes, most: int) -> tuple[Kind, bytes]:
    """Return the reply, or a LOST reply if it is longer than `most` bytes."""
    if len(body) <= most:
        return kind, body
    if kind is Kind.LOST:
        return kind, body[:most]
    what = "returned" if kind is Kind.VALUE else "raised"
    return Kind.LOST, f"what it {what} is {len(body)} bytes as a pickle, and max_result is {most}".encode()[:most]
