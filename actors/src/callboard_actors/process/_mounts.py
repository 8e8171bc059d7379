"""What a file system of one's own has in it: folders that are mounted, and the links that lead to them."""

import os
from collections import deque
from collections.abc import Container, Iterable
from pathlib import Path

from callboard_actors.process._confine import TEMPORARY

_OWN = ("/proc", "/dev")
"""What the inside has of its own; who asks for it, or for something in it, asks for that."""


class OwnPlaceError(ValueError):
    """A path would have to be mounted where the inside has something of its own."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(path)


def mounts(read: Iterable[str], write: Iterable[str]) -> list[str]:
    """Arguments of `bwrap` for paths as they are written, links included; each to be found inside by the same way.

    Raises:
        OwnPlaceError: one of them is the root, or the folder for temporary files.
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
    made = _uncovered(kinds)
    links |= _of_the_root(made)
    found = [one for path, kind in made.items() for one in (kind, path, path)]
    for name, target in links.items():
        if _above(name, made) is None:
            found += ["--symlink", target, name]
    return found


def followed(path: str) -> tuple[str, dict[str, str]]:
    """Where a path leads, and every link on the way with what it says. The path has to be there."""
    here, links = "/", dict[str, str]()
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
    """Without what is there because a folder above it is, and may be done with it no less; those above come first."""
    made: dict[str, str] = {}
    for path in sorted(kinds, key=lambda one: Path(one).parts):
        above = _above(path, made)
        if above is None or made[above] == "--ro-bind" != kinds[path]:
            made[path] = kinds[path]
    return made


def _above(path: str, made: Container[str]) -> str | None:
    """The nearest folder above that is mounted."""
    return next((str(one) for one in Path(path).parents if str(one) in made), None)


def _of_the_root(made: dict[str, str]) -> dict[str, str]:
    """Such as /bin, which everybody writes, for /usr/bin."""
    links = (path for path in Path("/").iterdir() if path.is_symlink())
    real = ((path, os.path.realpath(path)) for path in links)
    return {str(path): str(path.readlink()) for path, to in real if to in made or _above(to, made) is not None}
