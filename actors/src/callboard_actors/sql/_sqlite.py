"""SQLite backend: runs statements on a database file, with limits, and an authorizer that checks each statement.

The file is opened for reading only, except for calls that may write.
"""

import re
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from callboard_actors.sql._rows import Caps, Rows, SqlError, did_you_mean, gather
from callboard_actors.sql._work import Job, Once, Parameters

# Permissions and limits of statements; SQLite asks for a permission when it prepares a statement.

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_OF_VIRTUAL_TABLES = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
"""Writing actions for which a virtual table asks the authorizer at its first read.

They are allowed, and fail when they are executed, because the file is read-only.
"""
_NEVER = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT}
"""Actions that are refused even to a connection that may write: opening other files, and control of transactions."""
_TELLING_PRAGMAS = {
    "data_version",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "table_info",
    "table_list",
    "table_xinfo",
}
"""Pragmas that are allowed: they describe a schema and set nothing."""
_HARMFUL_FUNCTIONS = {"fts3_tokenizer", "load_extension", "readfile", "writefile", "edit", "regexp"}

_OWN_PREFIX = "sqlite_"
_OWN_TABLES = {
    "sqlite_master",
    "sqlite_schema",
    "sqlite_temp_master",
    "sqlite_temp_schema",
    "sqlite_sequence",
    "sqlite_stat1",
    "sqlite_stat4",
}
"""Internal tables of SQLite that may be read. Other internal tables show data that is not part of the database, such as
the statements of other conversations (`sqlite_stmt`) or deleted rows (`sqlite_dbpage`).
"""

_LONGEST = 400_000
"""Maximum bytes of a value, and of a row.

A function is one step of SQLite's virtual machine, and no step can be interrupted.
"""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _LONGEST,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 250_000,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 1_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


def limited(driver: sqlite3.Connection, memory: int | None) -> None:
    """Set the limits of a SQLite connection. `memory` (bytes) is for the whole process, and cannot be raised later."""
    for limit, most in _LIMITS.items():
        driver.setlimit(limit, most)
    # The only limit on the memory for parsing a statement: no handler is called meanwhile.
    if memory is not None:
        driver.execute(f"PRAGMA hard_heap_limit = {memory:d}")
    driver.execute("PRAGMA trusted_schema = OFF")  # no function with effects in views or triggers of the file


class Guard:
    """Authorizer of a SQLite connection: it decides which actions a statement may take."""

    def __init__(self, driver: sqlite3.Connection, *, writes: bool) -> None:
        self._writes = writes
        self._is_trusted = False
        if not writes:
            driver.execute("PRAGMA query_only = ON")
        driver.execute("PRAGMA foreign_keys = ON")
        driver.set_authorizer(self._may)

    def _may(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        return sqlite3.SQLITE_OK if self._is_trusted or self._is_harmless(action, first, second) else _DENY

    def _is_harmless(self, action: int, first: str | None, second: str | None) -> bool:
        if action == sqlite3.SQLITE_READ and first is not None and first.lower().startswith(_OWN_PREFIX):
            return first.lower() in _OWN_TABLES
        if action in _READS or action in _OF_VIRTUAL_TABLES:
            return True
        if action == sqlite3.SQLITE_FUNCTION:
            return second not in _HARMFUL_FUNCTIONS
        if action == sqlite3.SQLITE_PRAGMA:
            return first in _TELLING_PRAGMAS
        return self._writes and action not in _NEVER

    @contextmanager
    def transaction(self, driver: sqlite3.Connection) -> Generator[None]:
        """Run the `with` block in a transaction: commit its changes, or roll all of them back after an error."""
        self._execute(driver, "BEGIN IMMEDIATE")
        try:
            yield
            self._end(driver, "COMMIT")
        except BaseException:
            if driver.in_transaction:  # otherwise SQLite has rolled it back already
                self._end(driver, "ROLLBACK")
            raise

    def _end(self, driver: sqlite3.Connection, how: str) -> None:
        driver.set_progress_handler(None, 0)  # COMMIT and ROLLBACK must not be interrupted
        self._execute(driver, how)

    def _execute(self, driver: sqlite3.Connection, statement: str) -> None:
        """Run a statement of this module without the checks of the authorizer, which would refuse it."""
        self._is_trusted = True
        try:
            driver.execute(statement)
        finally:
            self._is_trusted = False


_DENY: int = sqlite3.SQLITE_DENY


# Errors, as texts that a model can act on.

_NO_SUCH = re.compile(r"no such (?:table|column): (.+)")

_NOT_HERE = "A query only reads, and nothing reaches other files, settings, or the transaction around a statement."
_REMEDIES = (
    ("interrupted", "Ask for less, or for a part of it."),
    ("not authorized", _NOT_HERE),
    ("authorization denied", _NOT_HERE),
    ("readonly", "A query only reads."),
    ("string or blob too big", "A value is larger than may be read here; ask for the other columns, or its length()."),
    ("one statement at a time", "Leave out all but one."),
    ("did not supply a value", "Give each :name of the statement in the parameters."),
    ("has no name", "Write :name for each value."),
    ("is not supported", "A list or an object is its JSON as a text, for json_each()."),
    ("locked", "Another program is writing; try again."),
    ("no such function", "SQLite has no such function."),
)


def explained(error: BaseException | None, job: Job, names: Sequence[str]) -> SqlError:
    """Return an SqlError that explains to a model why a statement failed in SQLite, or was stopped."""
    said = str(error)
    if job.is_over and isinstance(error, (sqlite3.OperationalError, InterruptedError)):
        return SqlError(f"It was stopped after {job.seconds:g} s. Ask for less, or for a part of it.")
    if found := _NO_SUCH.fullmatch(said):
        return SqlError(f"{said}{did_you_mean(found[1], names) or '.'}")
    remedy = next((remedy for part, remedy in _REMEDIES if part in said), "")
    return SqlError(f"{said.rstrip('.')}. {remedy}".rstrip())


# The backend.

_PATIENCE = 2.0
"""Maximum seconds to wait for a locked database file."""
_STEPS = 1000
"""Number of instructions of SQLite's virtual machine between two checks of the time."""
_COUNTED = 100_000
"""Maximum number of rows that are counted; for larger tables only this bound is shown."""


class SqliteBackend:
    """Implementation of the protocol `Backend` for a SQLite file, with pools of connections.

    `memory` limits the memory of SQLite in the whole process, in bytes; `None` is no limit.
    """

    def __init__(self, path: Path, connections: int, memory: int | None = None, *, writes: bool) -> None:
        self._path = path
        self._writes = writes
        self._reads = _engine(path, "ro", connections, memory)
        self._changes = _engine(path, "rw", connections, memory) if writes else None

    def check(self, job: Job) -> None:
        if not self._path.is_file():
            raise SqlError(f"There is no database at {str(self._path)!r}; one is not made here.")
        for engine in (self._reads, self._changes):
            if engine is not None:
                with self._session(engine, job) as connection:
                    _driver(connection).execute("SELECT count(*) FROM sqlite_master").fetchone()

    def reading(self, job: Job) -> AbstractContextManager[sqlalchemy.Connection]:
        return self._session(self._reads, job)

    @contextmanager
    def _session(self, engine: sqlalchemy.Engine, job: Job) -> Generator[sqlalchemy.Connection]:
        try:
            with engine.connect() as connection:
                driver = _driver(connection)
                driver.set_progress_handler(lambda: job.is_over, _STEPS)
                try:
                    # The handler checks the job, too: an interrupt before the statement begins has no effect.
                    with job.stoppable(driver.interrupt):
                        yield connection
                finally:
                    driver.set_progress_handler(None, 0)
        except DBAPIError as error:
            raise explained(error.orig, job, ()) from error

    def query(self, statement: str, parameters: Parameters, caps: Caps, job: Job) -> Rows:
        with self.reading(job) as connection:
            driver = _driver(connection)
            with _errors(driver, job):
                cursor = driver.execute(statement, parameters)
                if cursor.description is None:
                    raise SqlError("That gives no rows: a query is a SELECT.")
                return gather(_columns(cursor), cursor, caps)

    def execute(self, statement: str, parameters: Parameters, caps: Caps, job: Job, once: Once | None) -> Rows:
        assert self._changes is not None
        with self._session(self._changes, job) as connection:
            driver = _driver(connection)
            guard: Guard = connection.connection.info["guard"]
            with _errors(driver, job), guard.transaction(driver):
                if once is not None:
                    driver.execute(
                        f'CREATE TABLE IF NOT EXISTS "{once.table}" '
                        "(key TEXT PRIMARY KEY, changed INTEGER, at TEXT NOT NULL)"
                    )
                    if (before := once.begin(driver.execute, "?")) is not None:
                        return before
                cursor = driver.execute(statement, parameters)
                found = gather(_columns(cursor), cursor, caps)
                for _ in cursor:  # SQLite makes the changes while the rows are read
                    pass
                changed = cursor.rowcount if cursor.rowcount >= 0 else None
                if once is not None:
                    once.end(driver.execute, "?", changed)
                return Rows(found.columns, found.values, found.more, changed)

    def row_estimates(self, connection: sqlalchemy.Connection, tables: Sequence[str]) -> Mapping[str, str]:
        driver = _driver(connection)
        return {table: _estimate(driver, table) for table in tables}

    def close(self) -> None:
        for engine in (self._reads, self._changes):
            if engine is not None:
                engine.dispose()


def _engine(path: Path, mode: str, connections: int, memory: int | None) -> sqlalchemy.Engine:
    engine = sqlalchemy.create_engine(
        "sqlite://",
        creator=partial(_connect, path, mode),
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
    )

    def connected(driver: sqlite3.Connection, record: Any) -> None:
        # SQLAlchemy adds REGEXP in Python: a bad pattern would block the whole process for as long as it takes.
        driver.create_function("regexp", 2, None)
        limited(driver, memory)
        record.info["guard"] = Guard(driver, writes=mode == "rw")

    event.listen(engine, "connect", connected)
    return engine


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    driver = sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    driver.text_factory = partial(str, encoding="utf-8", errors="replace")
    return driver


def _driver(connection: sqlalchemy.Connection) -> sqlite3.Connection:
    driver: Any = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _columns(cursor: sqlite3.Cursor) -> list[str]:
    return [column[0] for column in cursor.description or ()]


@contextmanager
def _errors(driver: sqlite3.Connection, job: Job) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        driver.set_progress_handler(None, 0)
        raise explained(error, job, _names(driver)) from error


def _names(driver: sqlite3.Connection) -> list[str]:
    """Return the names of all tables, views and columns; empty if they cannot be read."""
    try:
        tables = [name for (name,) in driver.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
        columns = driver.execute(
            "SELECT DISTINCT info.name FROM sqlite_master AS made, pragma_table_info(made.name) AS info"
        )
        return [*tables, *(name for (name,) in columns)]
    except sqlite3.Error:
        return []  # suggestions are optional


def _estimate(driver: sqlite3.Connection, table: str) -> str:
    quoted = table.replace('"', '""')
    try:
        some = f'SELECT 1 FROM "{quoted}" LIMIT {_COUNTED + 1}'  # noqa: S608 (a name cannot be a parameter)
        (count,) = driver.execute(f"SELECT count(*) FROM ({some})").fetchone()  # noqa: S608
    except sqlite3.Error:
        return "unknown"
    return f"more than {_COUNTED:,}" if count > _COUNTED else f"{count:,}"
