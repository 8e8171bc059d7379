"""Connection of this process to Ray. All engines share it; the last engine closes it if an engine opened it."""

import logging
import os
import re
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from callboard import ActorStartError
from callboard_actors._util._loopback import is_loopback
from callboard_actors.ray._options import RayOptions

_ADDRESS_PATTERN = re.compile(r"(?:ray://)?(?P<host>[^/]+):(?P<port>\d+)")
_CONNECT_TIMEOUT = 10.0
"""Seconds for the cluster's head node to accept a TCP connection."""
_TOKEN_FILE = Path("~/.ray/auth_token")
"""File in which Ray looks for its token if no environment variable names it."""

# Ray has one connection per process. The lock guards the three variables: engines connect in worker threads.
_lock = threading.Lock()
_user_count = 0
_address: str | None = None
# False if the program itself called `ray.init`: then the connection is never closed here.
_is_opened_here = False


def connect(address: str | None) -> None:
    """Connect this process to Ray, or share the existing connection; block the thread until Ray is connected."""
    global _user_count, _address, _is_opened_here
    with _lock:
        if not ray.is_initialized():
            _connect(address)
            _is_opened_here, _address = True, address
        elif address not in (None, "auto", _address) and _is_opened_here:
            raise ActorStartError(
                "RayEngine",
                f"this process is connected to Ray at {_address!r} already, not at {address!r}",
                is_permanent=True,
            )
        # Last: an engine that failed to connect must not call `disconnect`.
        _user_count += 1


def _connect(address: str | None) -> None:
    target = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    match = None if target is None else _ADDRESS_PATTERN.fullmatch(target)
    if match is not None:
        _check_token(match["host"], match[0])
        # `ray.init` would block for minutes if nothing listens there.
        try:
            socket.create_connection((match["host"].strip("[]"), int(match["port"])), timeout=_CONNECT_TIMEOUT).close()
        except OSError as error:
            raise ActorStartError("RayEngine", f"no Ray can be reached at {target!r}: {error}") from error
    # Without an address, start a local Ray: an instance that happens to run here belongs to another program.
    arguments: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(**arguments)
    except Exception as error:
        problem = "a Ray of its own cannot be started" if address is None else f"no Ray can be reached at {target!r}"
        # Ray does not tell a wrong token from a port that nobody serves; this port has accepted a connection.
        hint = "; is the token here the one of the cluster?" if match and isinstance(error, ConnectionError) else ""
        raise ActorStartError("RayEngine", f"{problem}: {type(error).__name__}: {error}{hint}") from error
    if address is not None and match is None:
        # The address that Ray has found by itself for "auto".
        gcs_address: str = ray.get_runtime_context().gcs_address
        try:
            _check_token(gcs_address.rpartition(":")[0], gcs_address)
        except ActorStartError:
            ray.shutdown()
            raise


# Token authentication. Without it, everybody who reaches the ports of a cluster can run code there.


def _check_token(host: str, address: str) -> None:
    """Raise `ActorStartError` if Ray would connect to another machine without a token."""
    if is_loopback(host):
        return
    mode = os.environ.get("RAY_AUTH_MODE", "").lower()
    has_token = (
        bool(os.environ.get("RAY_AUTH_TOKEN"))
        or (Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or _TOKEN_FILE).expanduser()).is_file()
    )
    if mode == "token" and has_token:
        return
    problems = [
        *([] if mode == "token" else [f"RAY_AUTH_MODE is {mode!r}" if mode else "RAY_AUTH_MODE is not set"]),
        *([] if has_token else ["there is no token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"]),
    ]
    raise ActorStartError(
        "RayEngine",
        f"Ray at {address!r} is reached over a network without token authentication: {', and '.join(problems)}. "
        "Start the cluster and this program with RAY_AUTH_MODE=token and the same token: "
        "`ray get-auth-token --generate` makes it",
        is_permanent=True,
    )


def disconnect() -> None:
    """End one engine's use of the Ray connection; the last user closes a connection that an engine opened."""
    global _user_count, _is_opened_here
    with _lock:
        _user_count -= 1
        if not _user_count and _is_opened_here:
            _is_opened_here = False
            # Blocks the thread.
            ray.shutdown()


def missing_resources(options: RayOptions) -> str | None:
    """Return a text that names the resources which a new Ray actor lacks; `None` if all are free. Blocks the thread."""
    # Ray has no types for these two.
    free_amounts: Mapping[str, Any] = ray.available_resources()  # type: ignore[no-untyped-call]
    total_amounts: Mapping[str, Any] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    needed_amounts = {"CPU": options.cpus, "GPU": options.gpus, "memory": options.memory or 0, **options.resources}
    shortages = [
        f"{name}: it needs {amount:g}, and {free_amounts.get(name, 0):g} of {total_amounts.get(name, 0):g} are free"
        for name, amount in needed_amounts.items()
        if amount > free_amounts.get(name, 0)
    ]
    return ", ".join(shortages) or None
