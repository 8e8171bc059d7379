"""Where recordings are, and what they are called."""

from collections.abc import Iterator
from pathlib import Path
from string import ascii_letters, digits

from callboard._cli._shown_text import CommandError, printable

_SAFE = frozenset(f"{ascii_letters}{digits}._-".encode())
_SQLITE = "sqlite:///"


def recording_name(thread_id: str) -> str:
    """The name of the file with a thread's recording, safe on any file system and the other way round readable."""
    return "".join(_safe(thread_id)) + ".jsonl"


def _safe(name: str) -> Iterator[str]:
    for byte in name.encode(errors="surrogatepass"):
        yield chr(byte) if byte in _SAFE else f"%{byte:02X}"


def records_dir(db: str) -> Path | None:
    """The folder with the recordings of a database's conversations, beside its file; `None` if it has no file."""
    path = db[len(_SQLITE) :] if db.lower().startswith(_SQLITE) else db
    if not path or "://" in path or path == ":memory:":
        return None
    return Path(f"{path}.calls")


def find_recording(name: str, *, db: str | None, records: Path | None) -> Path:
    """The recording that is meant: a file, or the name of a thread.

    Args:
        name: as it was typed.
        db: the database whose recordings are looked at.
        records: their directory; takes precedence.

    Raises:
        CommandError: if there is none; says where it was looked for.
    """
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
    except OSError:  # too long for a name
        return False


def _quoted(text: str) -> str:
    return f"'{printable(text)}'"
