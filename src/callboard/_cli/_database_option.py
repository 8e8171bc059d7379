"""Database of the option `--db`."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from callboard._cli._shown_text import CommandError, printable
from callboard.exceptions import StorageError
from callboard.threads import Threads, masked


@contextmanager
def open_database(where: str, *, must_exist: bool) -> Generator[Threads]:
    """Open the database at a path or URL for the block; turn storage errors inside the block into `CommandError`.

    Args:
        where: path of a SQLite file, or a URL.
        must_exist: raise `CommandError` for a missing file, instead of creating it.
    """
    try:
        with _threads(where) as threads:
            if must_exist:  # before anything connects: SQLite would create the file
                _check_exists(where)
            yield threads
    except StorageError as error:
        raise CommandError(" ".join(printable(str(error)).split())) from error


def _threads(where: str) -> Threads:
    try:
        return Threads(where if "://" in where else f"sqlite:///{where}")
    except (ImportError, ValueError) as error:
        raise CommandError(f"--db {masked(where)}: {error}") from error


def _check_exists(where: str) -> None:
    scheme, separator, path = where.partition(":///")
    is_file = separator and scheme.lower() == "sqlite"
    if ("://" in where and not is_file) or Path(path if is_file else where).exists():
        return
    file = masked(path if is_file else where)
    raise CommandError(f"there is no database {file!r}; callboard run ... --db {file} makes one")
