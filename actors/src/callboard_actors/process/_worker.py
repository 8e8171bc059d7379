"""A worker, from within: one call after the other, until its socket is closed. No event loop but those of its calls."""

import faulthandler
import os
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from io import TextIOWrapper
from socket import socket
from typing import Any, Protocol

from callboard.engines import arrived
from callboard_actors.process import _kernel
from callboard_actors.process._exits import flush
from callboard_actors.process._frames import NOTEBOOK, Kind, parts_of, receive_frame
from callboard_actors.process._pickles import loads
from callboard_actors.process._sent_file import set_sent_file
from callboard_actors.process._settings import Settings
from callboard_actors.process._variables import set_all
from callboard_actors.process._voice import Voice

Tell = Callable[[dict[str, Any]], None]


class Replies(Protocol):
    """How what a call ends with is answered."""

    @property
    def returned(self) -> Callable[[Any], tuple[Kind, bytes]]:
        """Answers with what a call has returned."""
        ...

    @property
    def raised(self) -> Callable[[Exception], tuple[Kind, bytes]]:
        """Answers with what a call has raised."""
        ...


def serve(sock: socket, notebook: int, settings: Settings) -> None:
    """Answer calls; return when nobody is left who would make one."""
    prepare(settings)
    voice, replies = Voice(sock), replies_of(settings)
    files: list[int] = []
    while (request := receive_frame(sock, files)) is not None:
        number, body = request
        # Before anything of the call runs; to unpickle it is to run it.
        os.pwrite(notebook, NOTEBOOK.pack(number), 0)
        if settings.terms.serves_once:
            os.close(notebook)  # what has begun cannot say that it has not
        if settings.terms.cpu is not None:
            _kernel.limit_processor_time(settings.terms.cpu, for_good=settings.terms.confine is not None)
        tell = voice.begin(number)
        # Of its own, so that the next call finds none of what this one sets.
        context = copy_context()
        for fd in files:
            context.run(set_sent_file, fd)
        outcome = context.run(_outcome, body, tell, settings.backend, replies)
        while files:
            os.close(files.pop())
        kind, reply = bounded(*outcome, settings.terms.max_result)
        flush()
        voice.reply(number, kind, reply)


def prepare(settings: Settings) -> None:
    """Set up this process as a worker."""
    _kernel.leave_no_core(for_good=settings.terms.confine is not None)
    if settings.terms.memory is not None:
        _kernel.limit_memory(settings.terms.memory)
    if (files := settings.terms.most_files) is not None:
        _kernel.limit_files(files)
    if settings.terms.nice is not None:
        os.nice(settings.terms.nice)
    # What was printed before a crash is worth the most.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a module that was loaded before may have put something else there
            stream.reconfigure(line_buffering=True)
    faulthandler.enable()


def _outcome(call: bytes | bytearray, tell: Tell, backend: str, replies: Replies) -> tuple[Kind, bytes]:
    given, pickled = parts_of(call)
    # SystemExit ends the process, as it does elsewhere.
    try:
        with arrived(given, tell):
            fn, args, kwargs, variables = loads(pickled)
            set_all(variables)
            value = fn(*args, **kwargs)
            if isinstance(value, Coroutine):
                value = _awaited(value, backend)
    except Exception as error:
        return replies.raised(without_own_frame(error))
    return replies.returned(value)


def replies_of(settings: Settings) -> Replies:
    """How a worker answers; the zygote has loaded what that takes."""
    if settings.terms.confine is None:
        from callboard_actors.process import _pickled_replies

        return _pickled_replies
    from callboard_actors.process import _plain_replies

    return _plain_replies


def without_own_frame(error: Exception) -> Exception:
    """An error as its traceback begins in the function that was called."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    return error


def _awaited(coroutine: Coroutine[Any, Any, Any], backend: str) -> Any:
    import anyio

    async def main() -> Any:
        return await coroutine

    return anyio.run(main, backend=backend)


def bounded(kind: Kind, body: bytes, most: int) -> tuple[Kind, bytes]:
    """A reply, or that it is too large."""
    if len(body) <= most:
        return kind, body
    if kind is Kind.LOST:
        return kind, body[:most]
    what = "returned" if kind is Kind.VALUE else "raised"
    return Kind.LOST, f"what it {what} is {len(body)} bytes as a pickle, and max_result is {most}".encode()[:most]
