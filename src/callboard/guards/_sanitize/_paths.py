"""Rule `PathIn` for paths that a model writes: a path must not lead out of the allowed folders, even through links."""

import errno
import os
import re
from functools import partial
from urllib.parse import unquote_to_bytes

from callboard._calls._thread_pool import WorkerThreads
from callboard.guards._sanitize._text import RefusedError, normalize, strip_invisible

_DRIVE = re.compile(r"[A-Za-z]:")
# Characters that look like slashes, or that some library may turn into one.
_SLASH_LOOKALIKE = re.compile("[\u2044\u2215\u2216\u29f5\u29f8\u2571\u2572]")
_SEPARATOR = re.compile("[\\\\\u2215\u2216\u29f5\u29f8\u2571\u2572\x00-\x1f\x7f-\x9f\u2028\u2029]")
_UTF16_ESCAPE = re.compile(r"%u[0-9A-Fa-f]{4}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Rounds of decoding: nested escapes such as `%252e` must not hide a second structure.
_MAX_DECODING_ROUNDS = 8
_MAX_PATH_CHARS = 4096
"""Maximum characters of a path."""
_OUTSIDE_REASON = "it leads out of the folders that are allowed"


class PathIn:
    """Rule for a path argument: a path below one of the roots. The tool gets the real path, without symbolic links.

    Refused are paths that lead out of the roots, by `..`, as an absolute path, or by symbolic links. Also refused
    are parts that some library may read differently: percent escapes and Unicode characters for separators or dots,
    backslashes, drives, `~`, control and invisible characters, and names that end in a dot or a space. A relative
    path is below the first root. The path need not exist.

    The check looks at the disk before the tool runs. Somebody who can create links below a root can do so in between.
    If others can, open files with `O_NOFOLLOW`, or give the tool a file system of its own.

    Args:
        roots: allowed folders; their targets are allowed as well if they are links.

    Raises:
        ValueError: if there is no root.
    """

    def __init__(self, *roots: str | os.PathLike[str]) -> None:
        if not roots or not all(os.fspath(root) for root in roots):
            raise ValueError(f"PathIn takes one folder or more, such as PathIn('/srv/data'); got {roots!r}")
        # Not resolved here: a root may be a link, and both its name and its target are compared later.
        self._roots = tuple(os.path.abspath(root) for root in roots)  # noqa: PTH100 (`pathlib` would follow links)
        self._worker_threads = WorkerThreads("PathIn")

    def __repr__(self) -> str:
        return f"PathIn({', '.join(map(repr, self._roots))})"

    def check(self, value: object) -> str | None:
        """Check a path and return its real, absolute path (`None` for `None`). This method blocks: it reads the disk.

        Raises:
            RefusedError: a `ValueError` with the reason, if the path is not allowed.
        """
        path = self._join_to_first_root(value)
        return None if path is None else self._resolve_below_roots(path)

    async def acheck(self, value: object) -> str | None:
        """Check a path as `check()` does, but access the disk in a worker thread."""
        path = self._join_to_first_root(value)
        return None if path is None else await self._worker_threads.run(partial(self._resolve_below_roots, path))

    def _join_to_first_root(self, value: object) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise RefusedError("type", "it has to be a text with one path")
        if not 0 < len(value) <= _MAX_PATH_CHARS:
            raise RefusedError("size", f"it has {len(value):,} characters, and 1 to {_MAX_PATH_CHARS:,} are allowed")
        check_spelling(value)
        return os.path.normpath(os.path.join(self._roots[0], value))  # noqa: PTH118 (`pathlib` knows no normpath)

    def _resolve_below_roots(self, path: str) -> str:
        roots = [resolve_links(root) for root in self._roots]
        # Compared before the disk is read: otherwise errors would tell the model which outside paths exist.
        if not any(is_below(path, root) for root in (*self._roots, *roots)):
            raise RefusedError("outside", _OUTSIDE_REASON)
        # Compared again with all links resolved: a link below a root may lead out.
        real_path = resolve_links(path)
        if not any(is_below(real_path, root) for root in roots):
            raise RefusedError("outside", _OUTSIDE_REASON)
        return real_path


def check_spelling(path: str) -> None:
    """Raise `RefusedError` for a path that some library could read as a different path."""
    if _CONTROL.search(path) or strip_invisible(path) != path:
        raise RefusedError("invisible", "it holds control or invisible characters")
    if "\\" in path or _SLASH_LOOKALIKE.search(path):
        raise RefusedError("separator", "it holds a backslash, or a character that looks like a slash")
    if path.startswith(("~", "//")) or _DRIVE.match(path) or "://" in path or (os.name == "nt" and ":" in path):
        raise RefusedError("prefix", "it begins with a home folder, a drive, a share or a scheme")
    for name in path.split("/"):
        if name not in (".", "..") and name.endswith((".", " ")):
            # Windows drops them, so `secret.txt.` would open `secret.txt`.
            raise RefusedError("name", "a name in it ends in a dot or a space")
    # Repeated decoding and normalisation must not change the path's structure.
    if _UTF16_ESCAPE.search(path):
        raise RefusedError("encoding", "it holds percent escapes of another kind than those of URLs")
    current_spelling, structure = path, _path_structure(path)
    for _ in range(_MAX_DECODING_ROUNDS):
        try:
            decoded = unquote_to_bytes(normalize("NFKC", current_spelling)).decode()
        except UnicodeDecodeError:
            raise RefusedError("encoding", "it holds percent escapes that are no UTF-8") from None
        if (
            _path_structure(decoded) != structure
            or _UTF16_ESCAPE.search(decoded)
            or strip_invisible(decoded) != decoded
        ):
            raise RefusedError("encoding", "it holds escapes or characters that stand for dots, slashes or controls")
        if decoded == current_spelling:
            return
        current_spelling = decoded
    raise RefusedError("encoding", f"it is escaped more than {_MAX_DECODING_ROUNDS - 1} times")


def _path_structure(path: str) -> list[str]:
    """Return the structure of a path, such as separators and `..`, with "name" in place of each file or folder name."""
    # They are separators, names made of dots only, and special beginnings.
    # U+2044 is absent from `_SEPARATOR`: NFKC makes it from fractions such as U+00BD, which are harmless.
    parts = _SEPARATOR.sub("\\\\", path).replace("\\", "/\\/").split("/")
    name_kinds = [name if name == "\\" or not name.strip(". ") else "name" for name in parts]
    home = "~" if path.startswith("~") else ""
    return [*name_kinds, home, *_DRIVE.findall(path[:2])]


def resolve_links(path: str) -> str:
    """Return the path without symbolic links, even if its last parts do not exist."""
    # `os.path.realpath` guesses if it cannot look: for a loop, a path that is too long, a folder without permission.
    # Here each of these raises `RefusedError`. The path must be absolute and without `..`.
    missing: list[str] = []
    while True:
        try:
            return os.path.join(os.path.realpath(path, strict=True), *reversed(missing))  # noqa: PTH118 (all paths here are texts)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            is_loop = isinstance(error, OSError) and error.errno == errno.ELOOP
            reason = "its links go round in a circle" if is_loop else "it cannot be followed on the disk"
            raise RefusedError("link", reason) from None
        # A dangling link: opening it for writing would create its target, wherever that is.
        if os.path.lexists(path):
            raise RefusedError("link", "it is a link to something that does not exist")
        path, name = os.path.split(path)
        missing.append(name)


def is_below(path: str, root: str) -> bool:
    """Return whether a path is `root`, or a path below `root`. Only the names are compared; the disk is not read."""
    path, root = os.path.normcase(path), os.path.normcase(root)
    # With the separator, because `/srv/data2` is not below `/srv/data`.
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
