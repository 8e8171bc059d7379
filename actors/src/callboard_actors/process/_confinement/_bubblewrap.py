"""Sandbox for a zygote (parent process of workers), made by bubblewrap: separate namespaces, only permitted paths.

The first process in the new process namespace belongs to bubblewrap. It ends with the program that it runs, and then
the kernel kills every other process of that namespace.
"""

import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from callboard_actors._engine._kernel import children_of
from callboard_actors.process._confinement._confine import TEMPORARY, CannotConfineError, Confine
from callboard_actors.process._confinement._readable import ways_to_readable

# File system of the sandbox: mounted paths, and the links that lead to them.

_OWN = ("/proc", "/dev")
"""Folders that bubblewrap creates inside the sandbox. They and the paths below them are never mounted from outside."""


class OwnPlaceError(ValueError):
    """Raised for a path that leads to `/` or /tmp, which cannot be mounted: the sandbox has its own `/` and /tmp."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(path)


def mounts(read: Iterable[str], write: Iterable[str]) -> list[str]:
    """Return the `bwrap` arguments that mount the paths in `read` and `write`, and create symbolic links to them."""
    links: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for kind, paths in (("--ro-bind", read), ("--bind", write)):
        for path in paths:
            real, on_the_way = followed(path)
            if real in ("/", TEMPORARY):
                raise OwnPlaceError(path)
            if real in _OWN or _above(real, _OWN) is not None:
                continue
            kinds[real] = kind
            links |= on_the_way
    # Real paths are mounted; links are created, not followed, so that the target is mounted only once.
    made = _uncovered(kinds)
    links |= _of_the_root(made)
    found = [one for path, kind in made.items() for one in (kind, path, path)]
    for name, target in links.items():
        # A link below a mounted folder exists already.
        if _above(name, made) is None:
            found += ["--symlink", target, name]
    return found


def followed(path: str) -> tuple[str, dict[str, str]]:
    """Return the real path of an existing path, and a mapping from each symbolic link in the path to its target."""
    here, links = "/", dict[str, str]()
    # Resolved by hand, one part at a time: `realpath` does not tell which links it followed.
    rest = deque(Path(path).absolute().parts[1:])
    while rest:
        part = rest.popleft()
        there = str(Path(here, part))
        if part == "..":
            here = str(Path(here).parent)
        elif Path(there).is_symlink():
            links[there] = target = str(Path(there).readlink())
            if target.startswith("/"):
                here = "/"
            rest.extendleft(reversed([one for one in Path(target).parts if one != "/"]))
        else:
            here = there
    return here, links


def _uncovered(kinds: dict[str, str]) -> dict[str, str]:
    """Return the mounts in `kinds`, except paths inside a folder that is mounted with the same or more rights."""
    # Keys are paths, parents first; values are "--ro-bind" or "--bind".
    made: dict[str, str] = {}
    for path in sorted(kinds, key=lambda one: Path(one).parts):
        above = _above(path, made)
        if above is None or made[above] == "--ro-bind" != kinds[path]:
            made[path] = kinds[path]
    return made


def _above(path: str, made: Container[str]) -> str | None:
    """Return the nearest parent folder of `path` that is contained in `made`; `None` if no parent is."""
    return next((str(one) for one in Path(path).parents if str(one) in made), None)


def _of_the_root(made: dict[str, str]) -> dict[str, str]:
    """Return the symbolic links in `/` that lead to a mounted path, as a mapping from link to target."""
    # Many programs use such links in paths, for example /bin, which leads to /usr/bin.
    links = (path for path in Path("/").iterdir() if path.is_symlink())
    real = ((path, os.path.realpath(path)) for path in links)
    return {str(path): str(path.readlink()) for path, to in real if to in made or _above(to, made) is not None}


# Sandbox, and the processes inside.

# Bytes. A tmpfs is memory of the kernel, which the limit of address space does not count.
_TEMPORARY_SIZE = 256 * 1024**2

# A user namespace lets bubblewrap create the others without root.
_ALONE = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup")


def wrapped(command: Sequence[str], confine: Confine) -> list[str]:
    """Return the `bwrap` command line that runs `command` in a sandbox with the permissions of `confine`."""
    program = shutil.which("bwrap")
    if program is None:
        raise CannotConfineError(
            "isolation='bubblewrap' needs bwrap, which is not installed; the package is called bubblewrap"
        )
    return [
        program,
        *_ALONE,
        *([] if confine.network else ["--unshare-net"]),
        # A session without a terminal: the program cannot put input into the terminal of ours.
        *("--cap-drop", "ALL", "--die-with-parent", "--new-session"),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(_TEMPORARY_SIZE), "--tmpfs", TEMPORARY),
        *_inside(confine),
        # Last, because bubblewrap creates the mount points of the options above in the root.
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
    # Paths were resolved when `Confine` was created. A confined worker with write access could since have replaced one
    # by a link, to gain access to its target.
    now = os.path.realpath(path)
    if now != path:
        raise CannotConfineError(f"{name} has {path!r}, which cannot be had: {path} leads to {now} now")
    if not Path(path).exists():
        raise CannotConfineError(f"{name} has {path!r}, which cannot be had: it is not there any more")
    return path


async def why_it_failed(confine: Confine) -> str | None:
    """Test bubblewrap by running an empty Python program in it; return an error text, or `None` for success."""
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
    """Running bubblewrap sandbox. It can be killed, and translates process ids inside the sandbox to ids outside."""

    def __init__(self, bwrap: int) -> None:
        self._bwrap = bwrap

    def kill(self) -> None:
        """Kill the sandbox with all its processes."""
        # The whole group: early in its start, bubblewrap has not yet arranged that its child dies with it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._bwrap, signal.SIGKILL)

    def pid(self, own: int) -> int | None:
        """Return a worker's process id outside the sandbox, given its id inside; `None` if the worker has ended."""
        # Process tree: bwrap, its init process in the namespace, the program, its children.
        programs = (pid for init in children_of(self._bwrap) for pid in children_of(init))
        return next((pid for program in programs for pid in children_of(program) if _own_number(pid) == own), None)


def _own_number(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # NSpid lists the ids from the outermost namespace to the innermost.
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), None)
