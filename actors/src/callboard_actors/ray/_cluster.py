"""The connection to Ray: one of the process, shared by all engines, and left by the last if they have made it."""

import logging
import re
import socket
import threading
from collections.abc import Mapping
from typing import Any

import ray

from callboard import ActorStartError

_PLACE = re.compile(r"(?P<host>[^/:]+):(?P<port>\d+)")
_TO_ANSWER = 10.0
"""Seconds for the cluster's head to take a connection."""

_lock = threading.Lock()
_users = 0
_address: str | None = None
_is_ours = False


def connect(address: str | None, options: Mapping[str, Any]) -> None:
    """Have a connection; blocks until there is one.

    Raises:
        ActorStartError: there is none.
    """
    global _users, _address, _is_ours
    with _lock:
        if not ray.is_initialized():
            _begin(address, options)
            _is_ours, _address = True, address
        elif address not in (None, "auto", _address) and _is_ours:
            raise ActorStartError(
                "RayEngine", f"this process is connected to Ray at {_address!r} already, not at {address!r}", never=True
            )
        _users += 1


def _begin(address: str | None, options: Mapping[str, Any]) -> None:
    if address is not None and (place := _PLACE.fullmatch(address)):
        _check_reachable(address, place["host"], int(place["port"]))
    # Without an address, a Ray of its own: one that happens to run here is somebody else's.
    arguments: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": logging.ERROR}
    arguments |= options
    try:
        ray.init(**arguments)
    except Exception as error:
        where = "a Ray of its own cannot be started" if address is None else f"no Ray can be reached at {address!r}"
        raise ActorStartError("RayEngine", f"{where}: {type(error).__name__}: {error}") from error


def _check_reachable(address: str, host: str, port: int) -> None:
    """Raise ActorStartError if nobody listens there: Ray would try for minutes, and nothing could end it."""
    try:
        socket.create_connection((host, port), timeout=_TO_ANSWER).close()
    except OSError as error:
        raise ActorStartError("RayEngine", f"no Ray can be reached at {address!r}: {error}") from error


def disconnect() -> None:
    """Need it no more; blocks while the last one leaves a connection that was made here."""
    global _users, _is_ours
    with _lock:
        _users -= 1
        if not _users and _is_ours:
            _is_ours = False
            ray.shutdown()
