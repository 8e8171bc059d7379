"""Access to the database that the option `--db` names, and to the files in which recordings are stored."""

import urllib.parse
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from callboard._cli._command_options import RunOptions
from callboard._cli._shown_text import CommandError, quote
from callboard.exceptions import StorageError
from callboard.questions import printable

if TYPE_CHECKING:
    from callboard.threads import StoredThread, Threads

# Databases.


@contextmanager
def open_database(database: str, *, must_exist: bool) -> Generator["Threads"]:
    """Open the database at a path or URL for the `with` block; storage errors in the block become `CommandError`."""
    # Imported here, because commands that read recordings need no LangGraph.
    from callboard.threads import Threads, masked

    try:
        try:
            opened = Threads(database if "://" in database else f"sqlite:///{database}")
        except (ImportError, ValueError) as error:
            raise CommandError(f"--db {masked(database)}: {error}") from error
        with opened as threads:
            # Checked before anything connects: SQLite would create the file.
            if must_exist and (path := _file_of(database)) is not None and not Path(path).exists():
                file = masked(path)
                raise CommandError(f"there is no database {file!r}; callboard run ... --db {file} makes one")
            yield threads
    except StorageError as error:
        raise CommandError(" ".join(printable(str(error)).split())) from error


async def read_threads(threads: "Threads") -> "list[StoredThread]":
    """Return all conversations in a database."""
    stored_threads = [await threads.read(name) for name in await threads.names()]
    return [thread for thread in stored_threads if thread is not None]


_SQLITE = "sqlite:///"


def _file_of(database: str) -> str | None:
    """Return the path of a SQLite file, given as a path or URL; `None` for a URL of another database."""
    if database.lower().startswith(_SQLITE):
        return database[len(_SQLITE) :]
    return None if "://" in database else database


# Files of recordings: their names and directories.


def recording_name(thread_id: str) -> str:
    """Return the file name for the recording of a conversation (thread)."""
    # The thread id is percent-encoded: safe on any file system, and reversible.
    # `quote` leaves "~", which a shell expands at the beginning of a word.
    return urllib.parse.quote(thread_id.encode(errors="surrogatepass"), safe="").replace("~", "%7E") + ".jsonl"


def records_dir(db: str) -> Path | None:
    """Return the directory for the recordings of a database, next to its file; `None` for a database without a file."""
    path = _file_of(db)
    return Path(f"{path}.calls") if path and path != ":memory:" else None


def find_recording(name: str, *, db: str | None, records: Path | None) -> Path:
    """Return the path of a recording, by its file or by a thread id; raise `CommandError` if there is none."""
    # A file wins over a thread of the same name. `records` wins over the directory beside the database.
    if _is_there(Path(name)):
        return Path(name)
    directory = records or (records_dir(db) if db else None)
    if directory is None and db:
        raise CommandError("recordings are files, and that database is none: name their directory with --records")
    if directory is None:
        raise CommandError(
            f"there is no file {quote(name)}; the name of a thread needs --db or --records, "
            f"which say where its recording is. {_ADVICE}"
        )
    path = directory / recording_name(name)
    if not _is_there(path):
        raise CommandError(
            f"there is no file {quote(name)}, and no recording of a thread of that name: "
            f"{quote(path)} is not there. {_ADVICE}"
        )
    return path


_ADVICE = "callboard run ... --record makes recordings."


def _is_there(path: Path) -> bool:
    try:
        return path.exists() and not path.is_dir()
    except OSError:  # the name is too long for the file system
        return False


# RecordingWriter of a run, and its options.


def recording_path(options: RunOptions, thread_id: str) -> Path | None:
    """Return the path for a thread's recording, `None` if none is made; raise `CommandError` if no directory is set."""
    folder = options.record_to or (records_dir(options.db) if options.db else None)
    if options.record is not False and folder is not None:
        return folder / recording_name(thread_id)
    for option, value in (("--record", options.record), ("--capture", options.capture and not options.web)):
        if value:
            raise CommandError(f"{option} needs a recording: --record-to DIR, or --db with the path of a file")
    return None


@contextmanager
def record_calls(*paths: Path | None, capture: bool = False) -> Generator[None]:
    """Record the calls in the `with` block, and append the recording to each file in `paths` (`None` is skipped)."""
    from callboard.telemetry import RecordingWriter

    with ExitStack() as stack:
        for path in filter(None, paths):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(RecordingWriter(path, append=True, capture=capture))
            except FileExistsError as error:
                raise CommandError(f"cannot record to {path}: {path.parent} is no directory") from error
            except ImportError as error:
                raise CommandError(f"cannot record arguments and results: {error}") from error
            except OSError as error:
                raise CommandError(f"cannot record to {path}: {error.strerror or error}") from error
        yield
