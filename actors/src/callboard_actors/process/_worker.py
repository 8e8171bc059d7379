"""A worker, from within: one call after the other, until its socket is closed. No event loop but those of its calls."""

import faulthandler
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from socket import socket
from typing import Any

from callboard.engines import arrived
from callboard_actors.process import _kernel
from callboard_actors.process._frames import NOTEBOOK, Kind, parts_of, receive_frame
from callboard_actors.process._settings import Settings
from callboard_actors.process._variables import set_all
from callboard_actors.process._voice import Voice

Tell = Callable[[dict[str, Any]], None]

_TRACEBACK_BOUND = 16 * 1024


def serve(sock: socket, notebook: int, settings: Settings) -> None:
    """Answer calls; return when nobody is left who would make one."""
    prepare(settings)
    voice = Voice(sock)
    while (request := receive_frame(sock)) is not None:
        number, body = request
        # Before anything of the call runs; to unpickle it is to run it.
        os.pwrite(notebook, NOTEBOOK.pack(number), 0)
        if settings.terms.cpu is not None:
            _kernel.limit_processor_time(settings.terms.cpu)
        tell = voice.begin(number)
        # Of its own, so that the next call finds none of what this one sets.
        outcome = copy_context().run(_outcome, body, tell, settings.backend)
        kind, reply = bounded(*outcome, settings.terms.max_result)
        sys.stdout.flush()
        sys.stderr.flush()
        voice.reply(number, kind, reply)


def prepare(settings: Settings) -> None:
    """Set up this process as a worker."""
    _kernel.leave_no_core()
    if settings.terms.memory is not None:
        _kernel.limit_memory(settings.terms.memory)
    # What was printed before a crash is worth the most.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()


def _outcome(call: bytes | bytearray, tell: Tell, backend: str) -> tuple[Kind, bytes]:
    given, pickled = parts_of(call)
    # SystemExit ends the process, as it does elsewhere.
    try:
        with arrived(given, tell):
            fn, args, kwargs, variables = pickle.loads(pickled)  # noqa: S301 - from the pool, which trusts itself
            set_all(variables)
            value = fn(*args, **kwargs)
            if isinstance(value, Coroutine):
                value = _awaited(value, backend)
    except Exception as error:
        return raised(error)
    return returned(value)


def returned(value: object) -> tuple[Kind, bytes]:
    """The reply of a call that has returned something."""
    try:
        return Kind.VALUE, pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        text = f"it returned an object of type {type(value).__qualname__}, which cannot be pickled: {_said(error)}"
        return Kind.LOST, text.encode()


def _awaited(coroutine: Coroutine[Any, Any, Any], backend: str) -> Any:
    import anyio

    async def main() -> Any:
        return await coroutine

    return anyio.run(main, backend=backend)


def raised(error: Exception) -> tuple[Kind, bytes]:
    """The reply of a call that has raised something."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next  # without our own frame
    told = "".join(traceback.format_exception(error))[-_TRACEBACK_BOUND:]
    note = f"In worker process {os.getpid()}:\n{told}"
    try:
        error.add_note(note)
        body = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(body)  # noqa: S301 - many exceptions are pickled and never read again
    except Exception as problem:
        text = f"it raised {_said(error)}, which cannot be pickled: {_said(problem)}\n{note}"
        return Kind.LOST, text.encode(errors="replace")
    return Kind.RAISED, body


def bounded(kind: Kind, body: bytes, most: int) -> tuple[Kind, bytes]:
    """A reply, or that it is too large."""
    if len(body) <= most:
        return kind, body
    if kind is Kind.LOST:
        return kind, body[:most]
    what = "returned" if kind is Kind.VALUE else "raised"
    return Kind.LOST, f"what it {what} is {len(body)} bytes as a pickle, and max_result is {most}".encode()[:most]


def _said(error: Exception) -> str:
    try:
        return f"{type(error).__qualname__}({error})"
    except Exception:
        return type(error).__qualname__
