"""Directories and file names of recordings."""

from collections.abc import Iterator
from pathlib import Path
from string import ascii_letters, digits

from callboard._cli._shown_text import CommandError, printable

_SAFE = frozenset(f"{ascii_letters}{digits}._-".encode())
_SQLITE = "sqlite:///"


def recording_name(thread_id: str) -> str:
    """Return the file name of a thread's recording: percent-encoded, so safe on any file system and reversible."""
    return "".join(_safe(thread_id)) + ".jsonl"


def _safe(name: str) -> Iterator[str]:
    for byte in name.encode(errors="surrogatepass"):
        yield chr(byte) if byte in _SAFE else f"%{byte:02X}"


def records_dir(db: str) -> Path | None:
    """Return the directory of a database's recordings, beside its file; `None` for a database without a file."""
    path = db[len(_SQLITE) :] if db.lower().startswith(_SQLITE) else db
    if not path or "://" in path or path == ":memory:":
        return None
    return Path(f"{path}.calls")


def find_recording(name: str, *, db: str | None, records: Path | None) -> Path:
    """Return the path of a recording, given a file or a thread name; raise `CommandError` if there is none."""
    # A file wins over a thread of the same name. `records` wins over the directory beside the database.
    if _is_there(Path(name)):
        return Path(name)
    directory = records or (records_dir(db) if db else None)
    if directory is None and db:
        raise CommandError("recordings are files, and that database is none: name their directory with --records")
    if directory is None:
        raise CommandError(
            f"there is no file {_quoted(name)}; the name of a thread needs --db or --records, "
            f"which say where its recording is. {_ADVICE}"
        )
    found = directory / recording_name(name)
    if not _is_there(found):
        raise CommandError(
            f"there is no file {_quoted(name)}, and no recording of a thread of that name: "
            f"{_quoted(str(found))} is not there. {_ADVICE}"
        )
    return found


_ADVICE = "callboard run ... --record makes recordings."


def _is_there(path: Path) -> bool:
    try:
        return path.exists() and not path.is_dir()
    except OSError:  # the name is too long for the file system
        return False


def _quoted(text: str) -> str:
    return f"'{printable(text)}'"
