"""Bubblewrap: a program in namespaces of its own, with nothing in its file system but what it needs.

Its first process is one of bubblewrap's, which ends with the program, and with which the kernel ends all others.
"""

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from callboard_actors.process._confine import TEMPORARY, CannotConfineError, Confine
from callboard_actors.process._kernel import children_of
from callboard_actors.process._mounts import OwnPlaceError, mounts
from callboard_actors.process._readable import ways_to_readable

_TEMPORARY_SIZE = 256 * 1024**2

_ALONE = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup")


def wrapped(command: Sequence[str], confine: Confine) -> list[str]:
    """Make a command that starts this one inside.

    Raises:
        CannotConfineError: there is no bubblewrap, or a path cannot be had inside.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise CannotConfineError(
            "isolation='bubblewrap' needs bwrap, which is not installed; the package is called bubblewrap"
        )
    return [
        program,
        *_ALONE,
        *([] if confine.network else ["--unshare-net"]),
        *("--cap-drop", "ALL", "--die-with-parent", "--new-session"),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(_TEMPORARY_SIZE), "--tmpfs", TEMPORARY),
        *_inside(confine),
        *("--remount-ro", "/", "--", *command),
    ]


def _inside(confine: Confine) -> list[str]:
    read, write = [[_still_there(name, str(path)) for path in getattr(confine, name)] for name in ("read", "write")]
    always = ways_to_readable(confine.modules, network=confine.network)
    try:
        return mounts([*always, *read], write)
    except OwnPlaceError as error:
        name = "read or write" if error.path in (*read, *write) else "modules"
        raise CannotConfineError(
            f"{name} has {error.path!r}, and isolation='bubblewrap' has a root and a /tmp of its own; "
            "name what is needed below it"
        ) from error


def _still_there(name: str, path: str) -> str:
    # A worker of before may have made it a link, to be given more.
    now = os.path.realpath(path)
    if now != path:
        raise CannotConfineError(f"{name} has {path!r}, which cannot be had: {path} leads to {now} now")
    if not Path(path).exists():
        raise CannotConfineError(f"{name} has {path!r}, which cannot be had: it is not there any more")
    return path


async def why_it_failed(confine: Confine) -> str | None:
    """What bubblewrap says when it starts an interpreter that does nothing; `None` if it can."""
    found = await anyio.run_process(
        wrapped([sys.executable, "-I", "-S", "-c", ""], confine),
        check=False,
        env=confine.environment_from(os.environ),
        start_new_session=True,
    )
    if not found.returncode:
        return None
    said = found.stderr.decode(errors="replace").strip() or f"it ended with {found.returncode}"
    return f"isolation='bubblewrap' cannot be had on this system (are user namespaces allowed?): {said}"


class Inside:
    """The processes inside of one bubblewrap, by our numbers for them and by their own."""

    def __init__(self, bwrap: int) -> None:
        self._bwrap = bwrap
        self._program: int | None = None

    def kill(self) -> None:
        """End it with all that is inside, also where it has not got so far that it would die with us."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._bwrap, signal.SIGKILL)

    def program(self) -> int | None:
        """Return our number of the program; `None` if it has not begun, or has ended."""
        if self._program is None:
            self._program = next((pid for init in children_of(self._bwrap) for pid in children_of(init)), None)
        return self._program

    def pid(self, own: int) -> int | None:
        """Return our number of a child of the program, by its own; `None` if it has ended."""
        program = self.program()
        if program is None:
            return None
        return next((pid for pid in children_of(program) if _own_number(pid) == own), None)


def _own_number(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), None)
