"""Arguments of bubblewrap for the file system of a sandbox: mounted paths, and the links that lead to them."""

import os
from collections import deque
from collections.abc import Container, Iterable
from pathlib import Path

from callboard_actors.process._confinement._confine import TEMPORARY

_OWN = ("/proc", "/dev")
"""Folders that the sandbox has of its own; requests for them or for paths below are granted by these."""


class OwnPlaceError(ValueError):
    """Raised for a path that would cover a folder of the sandbox."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(path)


def mounts(read: Iterable[str], write: Iterable[str]) -> list[str]:
    """Return the arguments of `bwrap` that make each path reachable as it is written, links included.

    Raise `OwnPlaceError` for the root and for the folder of temporary files.
    """
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
    """Return the real path of an existing path, and the target of each link on the way."""
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
    """Drop paths below a mounted folder with the same or more rights; parents come first in the result."""
    made: dict[str, str] = {}
    for path in sorted(kinds, key=lambda one: Path(one).parts):
        above = _above(path, made)
        if above is None or made[above] == "--ro-bind" != kinds[path]:
            made[path] = kinds[path]
    return made


def _above(path: str, made: Container[str]) -> str | None:
    """Return the nearest mounted folder above a path."""
    return next((str(one) for one in Path(path).parents if str(one) in made), None)


def _of_the_root(made: dict[str, str]) -> dict[str, str]:
    """Return links in the root such as /bin to /usr/bin, which many programs use in paths."""
    links = (path for path in Path("/").iterdir() if path.is_symlink())
    real = ((path, os.path.realpath(path)) for path in links)
    return {str(path): str(path.readlink()) for path, to in real if to in made or _above(to, made) is not None}
