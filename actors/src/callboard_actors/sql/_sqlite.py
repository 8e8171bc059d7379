"""SQLite backend: files opened for reading only, with bounded statements."""

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from callboard_actors.sql._backend import Once, Parameters
from callboard_actors.sql._errors import SqlError
from callboard_actors.sql._rows import Caps, Rows, gather
from callboard_actors.sql._sqlite_errors import explained
from callboard_actors.sql._sqlite_guard import Guard, limited
from callboard_actors.sql._work import Job

_PATIENCE = 2.0
"""Seconds to wait for a locked file."""
_STEPS = 1000
"""Instructions of SQLite's virtual machine between two checks of the time."""
_COUNTED = 100_000
"""Rows that are counted; for larger tables only this bound is shown."""


class _Stop:
    """Stops a statement of SQLite.

    A progress handler checks the job as well, because an interrupt before the statement begins has no effect.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.cancel = self.cut = connection.interrupt


class SqliteBackend:
    """SQLite database in a file.

    Args:
        path: of the file.
        connections: largest number of connections.
        memory: bytes for SQLite in this process; `None` for no limit.
        writes: whether some connections may write.
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

    @contextmanager
    def reading(self, job: Job) -> Generator[sqlalchemy.Connection]:
        with self._session(self._reads, job) as connection:
            yield connection

    @contextmanager
    def _session(self, engine: sqlalchemy.Engine, job: Job) -> Generator[sqlalchemy.Connection]:
        try:
            with engine.connect() as connection:
                driver = _driver(connection)
                driver.set_progress_handler(lambda: job.is_over, _STEPS)
                try:
                    with job.stoppable(_Stop(driver)):
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
                if once is not None and (before := _executed_before(driver, guard, once)) is not None:
                    return before
                cursor = driver.execute(statement, parameters)
                found = gather(_columns(cursor), cursor, caps)
                for _ in cursor:  # SQLite makes the changes while the rows are read
                    pass
                changed = cursor.rowcount if cursor.rowcount >= 0 else None
                if once is not None:
                    _note(driver, guard, once, changed)
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
    """Return the names of all tables and columns."""
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


def _executed_before(driver: sqlite3.Connection, guard: Guard, once: Once) -> Rows | None:
    with guard.trusted():
        driver.execute(
            f'CREATE TABLE IF NOT EXISTS "{once.table}" (key TEXT PRIMARY KEY, changed INTEGER, at TEXT NOT NULL)'
        )
        select = f'SELECT changed FROM "{once.table}" WHERE key = ?'  # noqa: S608 (the name was checked)
        found = driver.execute(select, [once.key]).fetchone()
    return None if found is None else Rows((), (), changed=found[0], note="It had been executed before, by this call.")


def _note(driver: sqlite3.Connection, guard: Guard, once: Once, changed: int | None) -> None:
    with guard.trusted():
        insert = f'INSERT INTO "{once.table}" (key, changed, at) VALUES (?, ?, datetime())'  # noqa: S608
        driver.execute(insert, [once.key, changed])
