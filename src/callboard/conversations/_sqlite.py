"""SQLite savers and stores: access to a database file, and explanations of its errors."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from uuid import uuid4

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore

from callboard._langgraph._serializers import MEND, error_text
from callboard.conversations._database import LazySaver, LazyStore
from callboard.exceptions import StorageError

T = TypeVar("T", bound=SqliteSaver | SqliteStore)

PATIENCE = 10.0
"""Seconds to wait while another process writes to the file."""

_RETRY_DELAY = 0.05
"""Seconds between two attempts to create the tables."""

_LOG_PAGES = 100
"""Pages of SQLite's write-ahead log after which its content is moved to the database file, and the log begins anew."""


def open_saver(path: str, types: Iterable[type]) -> LazySaver:
    """Return a SQLite saver that stores only values of `types` and of LangGraph's and LangChain's own types."""
    # Called without a saver: the method does not use it, and the file is not open yet.
    next_version = partial(SqliteSaver.get_next_version, cast("Any", None))
    return LazySaver(SqliteFile(path, _saver), next_version, types)


def open_store(path: str) -> LazyStore:
    return LazyStore(SqliteFile(path, _store))


def _saver(path: str) -> SqliteSaver:
    # Used from any worker thread: the saver has a lock of its own around the connection.
    saver = SqliteSaver(sqlite3.connect(path, check_same_thread=False, timeout=PATIENCE, factory=_Connection))
    cast("Any", saver).lock = threading.RLock()  # reentrant: `join_writes` holds it around several writes
    return saver


def _store(path: str) -> SqliteStore:
    # Autocommit: the store begins and commits its own transactions.
    return SqliteStore(sqlite3.connect(path, check_same_thread=False, timeout=PATIENCE, isolation_level=None))


class _Connection(sqlite3.Connection):
    """Connection on which several writes of a saver can share a transaction."""

    _joins_writes = False

    @contextmanager
    def join_writes(self) -> Generator[None]:
        """Commit at the end of the `with` block only: ignore the saver's commits in it; roll back after an error."""
        self._joins_writes = True
        try:
            yield
            super().commit()
        except BaseException:
            self.rollback()
            raise
        finally:
            self._joins_writes = False

    def commit(self) -> None:
        if not self._joins_writes:
            super().commit()


class SqliteFile(Generic[T]):
    def __init__(self, path: str, connect: Callable[[str], T]) -> None:
        self._path = path
        self._connect = connect
        self._identity: tuple[int, int] | None = None
        """Device and number of the file that was opened; `None` without a file."""

    def __str__(self) -> str:
        return f"The SQLite database {self._path!r}"

    def open(self) -> T:
        if self._path != ":memory:":
            _make_private_file(self._path)
        opened = self._connect(self._path)
        with suppress(OSError):  # unknown: the file that is open is used as long as it can be
            self._identity = _identity(self._path)
        try:
            # In WAL mode, readers do not wait for a writer. The file keeps the mode, so all processes use it.
            _repeat_while_busy(partial(opened.conn.execute, "PRAGMA journal_mode=WAL"))
            opened.conn.execute(f"PRAGMA wal_autocheckpoint={_LOG_PAGES}")
            _repeat_while_busy(opened.setup)
            if isinstance(opened, SqliteStore):
                (version,) = opened.conn.execute("SELECT max(v) FROM store_migrations").fetchone()
                if version >= len(opened.MIGRATIONS):
                    raise StorageError(str(self), _OF_ANOTHER_VERSION)
        except (sqlite3.Error, StorageError):
            self.close(opened)
            raise
        except Exception as error:  # the tables have columns or rows that LangGraph never writes
            self.close(opened)
            raise StorageError(str(self), _OF_ANOTHER_VERSION) from error
        return opened

    def close(self, opened: T) -> None:
        opened.conn.close()

    @contextmanager
    def join_writes(self, opened: Any) -> Generator[None]:
        with opened.lock, opened.conn.join_writes():
            yield

    def is_lost(self, error: Exception) -> bool:
        return False

    def is_gone(self) -> bool:
        # SQLite goes on in a file without a name, which ends with the process.
        if self._identity is None:
            return False
        try:
            return _identity(self._path) != self._identity
        except OSError:  # such as a folder that this process may not read any more: the open file still works
            return False

    @contextmanager
    def explain_errors(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(str(self), self._reason(error)) from error

    def _reason(self, error: sqlite3.Error) -> str:
        """Return the text of an error message: why the database file cannot be used, and the remedy."""
        code = _code(error)
        if code == sqlite3.SQLITE_CANTOPEN:
            path = Path(self._path)
            if not path.parent.is_dir():
                return f"cannot be made: there is no directory {str(path.parent)!r}; make it first"
            if path.is_dir():
                return "is a directory; name a file in it"
            return "cannot be opened: allow this process to read and write the file, and to make files beside it"
        if code == sqlite3.SQLITE_ERROR and ("no such column" in str(error) or "has no column" in str(error)):
            return _OF_ANOTHER_VERSION
        return _REASONS.get(code) or f"cannot be used: {error_text(error)}. {MEND}"


def _identity(path: str) -> tuple[int, int] | None:
    """Return the device and the number of a file; `None` if there is no file. Raises OSError if that is unknown."""
    try:
        status = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _make_private_file(path: str) -> None:
    """Make an empty file that only this user may read, unless there is one; SQLite says why a file cannot be made."""
    # SQLite gives its log and its index the mode of the database.
    empty = f"{path}.{uuid4().hex}"
    with suppress(OSError):
        os.close(os.open(empty, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            # Not `path` itself is opened: its closed descriptor would end the locks that SQLite holds in this process.
            os.link(empty, path)
        finally:
            Path(empty).unlink()


_OF_ANOTHER_VERSION = (
    "has tables of another version, or of another program. Nothing was changed. "
    "Upgrade langgraph-checkpoint-sqlite, or name another file"
)

_REASONS = {
    sqlite3.SQLITE_NOTADB: (
        "is none: the file holds something else, or was written by a newer SQLite, or is encrypted. "
        "Nothing was changed. Name another file, or move this one away"
    ),
    sqlite3.SQLITE_CORRUPT: (
        "is damaged. Bring back a copy, or save what can be read with `sqlite3 FILE .recover` into a new file"
    ),
    sqlite3.SQLITE_READONLY: ("cannot be written. Allow this process to write the file, and to make files beside it"),
    sqlite3.SQLITE_PERM: "cannot be used: allow this process to read and write it",
    sqlite3.SQLITE_BUSY: f"is in use: another process has been writing for more than {PATIENCE:g} s. Try again",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full. Make room, and go on",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk, or the network file system, reports an error",
}


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code of an error; 0 if the driver raised the error itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _repeat_while_busy(step: Callable[[], object]) -> None:
    """Call `step`; repeat it for up to `PATIENCE` seconds if it fails because another process runs the same step."""
    # SQLite's own timeout does not cover every such conflict.
    until = time.monotonic() + PATIENCE
    while True:
        try:
            step()
        except sqlite3.Error as error:
            codes = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CONSTRAINT)
            is_race = _code(error) in codes or "duplicate column" in str(error)
            if not is_race or time.monotonic() >= until:
                raise
            time.sleep(_RETRY_DELAY)
        else:
            return
