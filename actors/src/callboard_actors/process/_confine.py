"""`Confine`: what a worker may do that is not trusted, and what environment it has."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from callboard_actors._environment import variables

_INHERITED = ("PATH", "LANG", "TZ")
_NOWHERE = "/nonexistent"
"""What Debian has as the home of those who have none."""
_ISOLATIONS: Final = ("landlock", "bubblewrap")
TEMPORARY: Final = "/tmp"  # noqa: S108 - nobody else's
"""The folder for temporary files of those who have a file system of their own."""
INIT: Final = 1
"""The process id of the first process of those who have such ids of their own, as they see it."""


class CannotConfineError(Exception):
    """This system cannot keep what is promised; says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confine:
    """What the workers of a pool may do, if what runs in them is not trusted; all else is refused by the kernel.

    They always may read the interpreter, its standard library and its site-packages, and use the processor, memory and
    threads.

    Args:
        read: files and folders, with all that is below them. They have to be there.
        write: likewise; they may be read, too. Modes, owners and times stay as they are.
        network: whether they may connect anywhere and listen, by TCP and UDP. UNIX sockets are refused all the same.
        processes: whether they may start processes, and execute what they may read.
        environment: variables, beside a few without secrets: PATH, LANG, LC_*, TZ, and a HOME that is not there.
        modules: folders from which they may load your own modules, beside the standard library and site-packages.
            Every file in such a folder can be read. The script's folder, `PYTHONPATH` and editable installations are
            closed unless they are named here. A module named in `preload` is loaded before the confinement and needs
            no folder, except with isolation="bubblewrap".
        reuse: whether a worker that has finished a call may get another one. What the first has left behind can read
            the second one's arguments, and answer for it.
        isolation: "landlock" refuses what is not theirs; with "bubblewrap", which has to be installed, that is not
            even there: they are in namespaces of their own, with a /proc, /dev and /tmp of their own. The latter is
            shared by the workers of an event loop, and lasts as long as they.
    """

    read: Iterable[str | os.PathLike[str]] = ()
    write: Iterable[str | os.PathLike[str]] = ()
    network: bool = False
    processes: bool = False
    environment: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    modules: Iterable[str | os.PathLike[str]] = ()
    reuse: bool = False
    isolation: Literal["landlock", "bubblewrap"] = "landlock"

    def __post_init__(self) -> None:
        for name in ("read", "write", "modules"):
            object.__setattr__(self, name, _paths(name, getattr(self, name)))
        for name in ("network", "processes", "reuse"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r} is neither True nor False")
        if self.isolation not in _ISOLATIONS:
            raise ValueError(f"isolation={self.isolation!r} is neither {' nor '.join(map(repr, _ISOLATIONS))}")
        object.__setattr__(self, "environment", variables("environment", self.environment))

    def environment_from(self, ours: Mapping[str, str]) -> dict[str, str]:
        """All variables that a worker has, if these are ours."""
        kept = {name: value for name, value in ours.items() if name in _INHERITED or name.startswith("LC_")}
        own = {"TMPDIR": TEMPORARY} if self.in_bubblewrap else {}
        return kept | {"HOME": _NOWHERE} | own | dict(self.environment)

    @property
    def in_bubblewrap(self) -> bool:
        """Whether workers have namespaces and a file system of their own."""
        return self.isolation == "bubblewrap"


def _paths(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes | os.PathLike) or not isinstance(value, Iterable):
        raise TypeError(f"{name}={value!r} is no list of paths")
    return tuple(_resolved(name, one) for one in value)


def _resolved(name: str, path: Any) -> str:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(f"{name} has {path!r}, which is no path")
    if not Path(path).exists():
        raise ValueError(f"{name} has {os.fspath(path)!r}, which is not there; a confined worker cannot get it later")
    return os.path.realpath(path)
