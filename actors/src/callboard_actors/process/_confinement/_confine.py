"""`Confine`: the permissions and the environment of workers that run untrusted code."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from callboard_actors._util._options import check_environment

_INHERITED = ("PATH", "LANG", "TZ")
_NOWHERE = "/nonexistent"
"""HOME of a confined worker: a folder that does not exist, as for system users on Debian."""


class CannotConfineError(Exception):
    """Raised if this system cannot enforce the confinement of workers; the text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confine:
    """Permissions of workers that run untrusted code; the kernel refuses everything else.

    Workers may always read the interpreter, its standard library and its site-packages, and use processor time, memory
    and threads.

    Args:
        read: files and folders, with everything below them. They must exist.
        write: files and folders that may be written and read. Modes, owners and times cannot be changed.
        network: allow to connect and listen by TCP and UDP, to and on any address. UNIX sockets are always refused.
        processes: allow to start processes, and to execute readable files.
        environment: additional variables. By default a worker has PATH, LANG, LC_*, TZ, and a HOME that does not exist.
        modules: folders from which workers may load your own modules, besides the standard library and site-packages.
            Every file in such a folder becomes readable. The script's folder, `PYTHONPATH` and editable installations
            are closed unless they are named here. A module named in `preload` is loaded before the confinement and
            needs no folder.
        reuse: allow a worker to serve several calls. Code left behind by one call can then read the arguments of the
            next call, and answer in its place.

    Raises:
        TypeError: if a value has the wrong type.
        ValueError: if a path does not exist.
    """

    read: Iterable[str | os.PathLike[str]] = ()
    write: Iterable[str | os.PathLike[str]] = ()
    network: bool = False
    processes: bool = False
    environment: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    modules: Iterable[str | os.PathLike[str]] = ()
    reuse: bool = False

    def __post_init__(self) -> None:
        for name in ("read", "write", "modules"):
            paths: Any = getattr(self, name)
            if isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Iterable):
                raise TypeError(f"{name}={paths!r} is no list of paths")
            resolved_paths: list[str] = []
            for path in paths:
                if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
                    raise TypeError(f"{name} has {path!r}, which is no path")
                if not Path(path).exists():
                    raise ValueError(
                        f"{name} has {os.fspath(path)!r}, which is not there; a confined worker cannot get it later"
                    )
                # Links are resolved now: the meaning of a path is fixed before any untrusted code runs.
                resolved_paths.append(os.path.realpath(path))
            object.__setattr__(self, name, tuple(resolved_paths))
        for name in ("network", "processes", "reuse"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r} is neither True nor False")
        object.__setattr__(self, "environment", check_environment("environment", self.environment))

    def environment_from(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return all environment variables of a worker; `environ` are the environment variables of this process."""
        # An allow-list: variables of this process may contain secrets.
        inherited = {name: value for name, value in environ.items() if name in _INHERITED or name.startswith("LC_")}
        return inherited | {"HOME": _NOWHERE} | dict(self.environment)
