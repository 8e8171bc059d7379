"""Which paths a tool may be given: those below a root, by every reading and on the disk."""

import errno
import os
import re
from functools import partial
from urllib.parse import unquote_to_bytes

from callboard._calls._thread_pool import THREADS, Threads
from callboard.middleware._sanitize._text import RefusedError, normalized, strip_invisible

_DRIVE = re.compile(r"[A-Za-z]:")
_LIKE_A_SLASH = re.compile("[\u2044\u2215\u2216\u29f5\u29f8\u2571\u2572]")
_SEPARATOR = re.compile("[\\\\\u2215\u2216\u29f5\u29f8\u2571\u2572\x00-\x1f\x7f-\x9f\u2028\u2029]")
_UTF16_ESCAPE = re.compile(r"%u[0-9A-Fa-f]{4}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ROUNDS = 8
_OUTSIDE = "it leads out of the folders that are allowed"


class PathIn:
    """What a path argument may be: a path below one of the roots; the tool gets the real path, without links.

    Refused is what leads out, by `..`, as an absolute path or by symbolic links, and what some library might take
    for something else: percent escapes and Unicode characters that stand for separators or dots, backslashes,
    drives, `~`, control and invisible characters, names that end in a dot or a space. A relative path is one below
    the first root. The path need not exist.

    The disk is looked at before the tool runs. Whoever can create links below a root can do so in between; where
    others can, open files with `O_NOFOLLOW`, or give the tool a file system of its own.

    Args:
        roots: folders; what they are links to counts as well.
        max_chars: characters, the longest path.

    Raises:
        ValueError: without roots, or for a number out of range.
    """

    def __init__(self, *roots: str | os.PathLike[str], max_chars: int = 4096) -> None:
        if not roots or not all(os.fspath(root) for root in roots):
            raise ValueError(f"PathIn takes one folder or more, such as PathIn('/srv/data'); got {roots!r}")
        if max_chars < 1:
            raise ValueError(f"PathIn(max_chars=...) must be 1 or more, got {max_chars!r}")
        self._roots = tuple(os.path.abspath(root) for root in roots)  # noqa: PTH100 (keeps links, for the one reading)
        self._max_chars = max_chars
        self._threads = Threads("PathIn", THREADS)

    def __repr__(self) -> str:
        return f"PathIn({', '.join(map(repr, self._roots))})"

    def check(self, value: object) -> str | None:
        """The real path, absolute; `None` stays what it is. Looks at the disk, and so belongs in a thread.

        Raises:
            RefusedError: a ValueError that says why it is not let through.
        """
        path = self._read(value)
        return None if path is None else self._real(path)

    async def acheck(self, value: object) -> str | None:
        """`check`, in a worker thread."""
        path = self._read(value)
        return None if path is None else await self._threads.run(partial(self._real, path))

    def _read(self, value: object) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise RefusedError("type", "it has to be a text with one path")
        if not 0 < len(value) <= self._max_chars:
            raise RefusedError("size", f"it has {len(value):,} characters, and 1 to {self._max_chars:,} are allowed")
        check_spelling(value)
        return os.path.normpath(os.path.join(self._roots[0], value))  # noqa: PTH118 (`pathlib` knows no normpath)

    def _real(self, path: str) -> str:
        roots = [real_path(root) for root in self._roots]
        # Before the disk is asked about it: what is outside is none of the model's business, existence included.
        if not any(is_below(path, root) for root in (*self._roots, *roots)):
            raise RefusedError("outside", _OUTSIDE)
        real = real_path(path)
        if not any(is_below(real, root) for root in roots):
            raise RefusedError("outside", _OUTSIDE)
        return real


def check_spelling(path: str) -> None:
    """Refuse a path that could be read as another one.

    Raises:
        RefusedError: with the rule it breaks.
    """
    if _CONTROL.search(path) or strip_invisible(path) != path:
        raise RefusedError("invisible", "it holds control or invisible characters")
    if "\\" in path or _LIKE_A_SLASH.search(path):
        raise RefusedError("separator", "it holds a backslash, or a character that looks like a slash")
    if path.startswith(("~", "//")) or _DRIVE.match(path) or "://" in path or (os.name == "nt" and ":" in path):
        raise RefusedError("prefix", "it begins with a home folder, a drive, a share or a scheme")
    _check_names(path)
    _check_readings(path)


def _check_names(path: str) -> None:
    for name in path.split("/"):
        if name not in (".", "..") and name.endswith((".", " ")):
            raise RefusedError("name", "a name in it ends in a dot or a space")


def _check_readings(path: str) -> None:
    """Refuse a path that decoding, once or more, or normalisation would give another structure."""
    if _UTF16_ESCAPE.search(path):
        raise RefusedError("encoding", "it holds percent escapes of another kind than those of URLs")
    reading, structure = path, _structure(path)
    for _ in range(_ROUNDS):
        other = _decoded(reading)
        if _structure(other) != structure or _UTF16_ESCAPE.search(other) or strip_invisible(other) != other:
            raise RefusedError("encoding", "it holds escapes or characters that stand for dots, slashes or controls")
        if other == reading:
            return
        reading = other
    raise RefusedError("encoding", f"it is escaped more than {_ROUNDS - 1} times")


def _decoded(path: str) -> str:
    folded = normalized("NFKC", path)
    try:
        return unquote_to_bytes(folded).decode()
    except UnicodeDecodeError:
        raise RefusedError("encoding", "it holds percent escapes that are no UTF-8") from None


def _structure(path: str) -> list[str]:
    """What shapes a path: its separators, names of dots only, and what may stand at its beginning."""
    # A fraction that normalisation takes apart (U+2044) is none.
    parts = _SEPARATOR.sub("\\\\", path).replace("\\", "/\\/").split("/")
    shape = [name if name == "\\" or not name.strip(". ") else "name" for name in parts]
    return [*shape, path[:1] * path.startswith("~"), *_DRIVE.findall(path[:2])]


def real_path(path: str) -> str:
    """Where a path really leads, whether the last parts of it exist or not.

    `os.path.realpath` guesses where it cannot look (a loop, a path too long, a folder without permission); here
    that is an error.

    Args:
        path: absolute and without `..`.

    Raises:
        RefusedError: if nobody can tell.
    """
    missing: list[str] = []
    while True:
        try:
            return os.path.join(os.path.realpath(path, strict=True), *reversed(missing))  # noqa: PTH118
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            reason = "its links go round in a circle" if _is_loop(error) else "it cannot be followed on the disk"
            raise RefusedError("link", reason) from None
        if os.path.lexists(path):
            raise RefusedError("link", "it is a link to something that does not exist")
        path, name = os.path.split(path)
        missing.append(name)


def _is_loop(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ELOOP


def is_below(path: str, root: str) -> bool:
    """Whether a path is a root or below it, by their names."""
    path, root = os.path.normcase(path), os.path.normcase(root)
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
