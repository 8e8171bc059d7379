"""Modules that workers have before their first call: loaded once by the zygote that forks them, or by each itself."""

import os
import pickle
import sys
import threading
import traceback
from contextlib import suppress
from socket import socket

from callboard_actors.process import _main_module
from callboard_actors.process._commands import REPORT, Report
from callboard_actors.process._frames import receive_frame
from callboard_actors.process._settings import Settings

_HELD_IN_WORDS = "starts a thread, which a fork would lose; leave it to the workers"


class FatalError(Exception):
    """Why there can be no workers."""


def received_settings(sock: socket) -> Settings:
    """What whoever started this process tells it first.

    Raises:
        FatalError: that one has gone.
    """
    found = receive_frame(sock)
    if found is None:
        raise FatalError("whoever started it has gone")
    return settings_in(found[1])


def settings_in(data: bytes | bytearray) -> Settings:
    """Unpickle what the pool has pickled."""
    settings = pickle.loads(data)  # noqa: S301 - from our parent
    assert isinstance(settings, Settings)
    return settings


def load(sock: socket, settings: Settings, *, quiet: bool = False) -> None:
    """Load what has to be loaded, and what is wanted besides where that works; the main module when it is needed.

    A module that cannot be forked, or that ends this process, ends it; by what was told, it is known which one it was.

    Raises:
        FatalError: what has to be loaded cannot be.
    """
    forks = settings.terms.start == "fork"
    _main_module.expect(settings.main)
    for name in settings.terms.preload:
        _load(name, forks=forks)
    for place, name in enumerate(settings.wanted):
        tell(sock, Report.LOADING, place, 0)
        _try_to_load(name, forks=forks, complain=not quiet)


def _load(name: str, *, forks: bool) -> None:
    try:
        _main_module.module_named(name)
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        raise FatalError(f"preload={name!r} cannot be imported: {error!r}\n{told}") from error
    if forks and threading.active_count() > 1:
        raise FatalError(f"preload={name!r} {_HELD_IN_WORDS}")


def _try_to_load(name: str, *, forks: bool, complain: bool) -> None:
    try:
        _main_module.module_named(name)
    except SystemExit:
        os._exit(1)
    except Exception as error:
        if _main_module.is_unguarded():
            raise FatalError(str(error)) from error
        if complain:
            sys.stderr.write(f"callboard: {name} is not preloaded in worker processes: {error!r}\n")
    if forks and threading.active_count() > 1:
        os._exit(1)  # the pool starts another zygote, without it


def tell(sock: socket, what: Report, number: int, value: int, text: bytes = b"") -> None:
    """Send the zygote a report: what it is about, of which number, with which value, and the text that follows."""
    sock.sendall(REPORT.pack(what, number, value) + text)


def tell_failure(sock: socket, error: BaseException) -> None:
    """Report why there can be no workers, if there is still somebody who wants any."""
    text = str(error) if isinstance(error, FatalError) else "".join(traceback.format_exception(error))
    with suppress(ConnectionError):
        tell(sock, Report.FAILED, 0, len(text.encode()), text.encode())
