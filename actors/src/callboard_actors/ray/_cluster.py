"""Validated options of an engine, and the connection of this process to Ray, which all engines share.

The last engine closes the connection if an engine opened it.
"""

import logging
import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from callboard import ActorStartError
from callboard_actors._util._options import check_counts

# Options.


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Validated options of an engine; `RayEngine` documents each of them."""

    workers: int
    most_workers: int
    idle_for: float
    cpus: float
    gpus: float
    memory: int | None
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    node: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    grace: float
    max_result: int
    start_timeout: float
    patience: float
    kill_timeout: float = 10.0
    """Maximum seconds to wait until Ray reports the end of a killed Ray actor."""

    def __post_init__(self) -> None:
        check_counts("RayEngine", [("workers", self.workers, 1), ("max_result", self.max_result, 1)])
        check_counts("RayEngine", [("most_workers", self.most_workers, self.workers)])
        for name in ("idle_for", "cpus", "gpus", "grace", "start_timeout", "patience"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"RayEngine({name}={value!r}) has to be a number of at least 0")

    def ray_options(self) -> dict[str, Any]:
        """Return the keyword arguments with which Ray starts a Ray actor."""
        options: dict[str, Any] = {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "resources": dict(self.resources) or None,
            "memory": self.memory,
            "runtime_env": None if self.runtime_env is None else dict(self.runtime_env),
        }
        if self.node is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self.node, soft=False)
        return {name: value for name, value in options.items() if value is not None}


# Connection.

_PLACE = re.compile(r"(?P<host>[^/:]+):(?P<port>\d+)")
_TO_ANSWER = 10.0
"""Seconds for the cluster's head node to accept a TCP connection."""

# Ray has one connection per process. The lock guards the three variables: engines connect in worker threads.
_lock = threading.Lock()
_users = 0
_address: str | None = None
# False if the program itself called `ray.init`: then the connection is never closed here.
_is_ours = False


def connect(address: str | None, options: Mapping[str, Any]) -> None:
    """Connect this process to Ray, or share its connection with other engines. Blocks until it is connected."""
    global _users, _address, _is_ours
    with _lock:
        if not ray.is_initialized():
            _begin(address, options)
            _is_ours, _address = True, address
        elif address not in (None, "auto", _address) and _is_ours:
            raise ActorStartError(
                "RayEngine", f"this process is connected to Ray at {_address!r} already, not at {address!r}", never=True
            )
        # Last: an engine that failed to connect must not call `disconnect`.
        _users += 1


def _begin(address: str | None, options: Mapping[str, Any]) -> None:
    if address is not None and (place := _PLACE.fullmatch(address)):
        _check_reachable(address, place["host"], int(place["port"]))
    # Without an address, start a local Ray: an instance that happens to run here belongs to another program.
    arguments: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": logging.ERROR}
    arguments |= options
    try:
        ray.init(**arguments)
    except Exception as error:
        where = "a Ray of its own cannot be started" if address is None else f"no Ray can be reached at {address!r}"
        raise ActorStartError("RayEngine", f"{where}: {type(error).__name__}: {error}") from error


def _check_reachable(address: str, host: str, port: int) -> None:
    """Raise `ActorStartError` if nothing listens at the address; `ray.init` would block for minutes."""
    try:
        socket.create_connection((host, port), timeout=_TO_ANSWER).close()
    except OSError as error:
        raise ActorStartError("RayEngine", f"no Ray can be reached at {address!r}: {error}") from error


def disconnect() -> None:
    """Release one engine's use of the Ray connection; after the last use, close it if an engine opened it. Blocks."""
    global _users, _is_ours
    with _lock:
        _users -= 1
        if not _users and _is_ours:
            _is_ours = False
            ray.shutdown()


def what_lacks(terms: RayOptions) -> str | None:
    """Return a text that names the resources which a new Ray actor lacks; `None` if all are free. Blocks the thread."""
    free: Mapping[str, Any] = ray.available_resources()  # type: ignore[no-untyped-call]
    total: Mapping[str, Any] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    needs = {"CPU": terms.cpus, "GPU": terms.gpus, "memory": terms.memory or 0, **terms.resources}
    lacking = [
        f"{name}: it needs {amount:g}, and {free.get(name, 0):g} of {total.get(name, 0):g} are free"
        for name, amount in needs.items()
        if amount > free.get(name, 0)
    ]
    return ", ".join(lacking) or None
