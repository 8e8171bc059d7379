"""Loading of modules before a worker's first call: in the zygote that is forked, or in each spawned interpreter."""

import os
import pickle
import sys
import threading
import traceback
from socket import socket

from callboard_actors._engine import _main_module
from callboard_actors._engine._frames import Kind, as_json, frame, receive_frame
from callboard_actors.process._settings import Settings

_HELD_IN_WORDS = "starts a thread, which a fork would lose; leave it to the workers"


class FatalError(Exception):
    """Raised if no worker can be started; the text is the reason."""


def received_settings(sock: socket) -> Settings:
    """Receive the settings that the parent sends first; raise `FatalError` if the parent has ended."""
    found = receive_frame(sock)
    if found is None:
        raise FatalError("whoever started it has gone")
    settings = pickle.loads(found[1])  # noqa: S301 - from our parent
    assert isinstance(settings, Settings)
    return settings


def load(settings: Settings, report: socket) -> None:
    """Load the modules of `preload`, and the optional modules of `settings.wanted`.

    Raise `FatalError` if a module of `preload` cannot be loaded. An optional module that starts a thread or exits ends
    this process; before it is loaded, its index is reported.
    """
    forks = settings.terms.start == "fork"
    # Only registered: the main module is loaded when a name of it is needed.
    _main_module.expect(settings.main)
    for name in settings.terms.preload:
        _load(name, forks=forks)
    for place, name in enumerate(settings.wanted):
        # Before the import, which may end this process in any way, even by a crash in C code.
        report.sendall(frame(Kind.TOLD, 0, as_json({"loading": place})))
        _try_to_load(name, forks=forks, complain=not settings.quiet)


def _load(name: str, *, forks: bool) -> None:
    try:
        _main_module.module_named(name)
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        raise FatalError(f"preload={name!r} cannot be imported: {error!r}\n{told}") from error
    # A fork has only the forking thread. Locks that other threads held stay locked in it for ever.
    if forks and threading.active_count() > 1:
        raise FatalError(f"preload={name!r} {_HELD_IN_WORDS}")


def _try_to_load(name: str, *, forks: bool, complain: bool) -> None:
    try:
        _main_module.module_named(name)
    except SystemExit:
        # Not `raise`: the module wants its process to end, which the pool reads as not loadable.
        os._exit(1)
    except Exception as error:
        if _main_module.is_unguarded():
            raise FatalError(str(error)) from error
        if complain:
            sys.stderr.write(f"callboard: {name} is not preloaded in worker processes: {error!r}\n")
    if forks and threading.active_count() > 1:
        os._exit(1)  # the pool starts another zygote without this module


def reason_of(error: BaseException) -> bytes:
    """Return the text of an error because of which no worker can be started."""
    text = str(error) if isinstance(error, FatalError) else "".join(traceback.format_exception(error))
    return text.encode(errors="replace")
