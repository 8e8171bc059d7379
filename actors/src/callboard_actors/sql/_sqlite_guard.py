"""Permissions of statements on an SQLite connection; SQLite asks when it prepares a statement."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_OF_VIRTUAL_TABLES = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
"""Actions that a virtual table prepares at its first read. Executing them fails, because the file is read-only."""
_NEVER = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT}
"""Actions that are refused to writers too: opening other files, and ending the surrounding transaction."""
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
"""Pragmas that describe a schema and set nothing."""
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
"""Tables of SQLite itself that may be read. Others show data of the connection or the whole process instead of the
database: `sqlite_stmt` the statements of other conversations, `sqlite_dbpage` deleted rows.
"""

_LONGEST = 400_000
"""Bytes of a value and of a row. A function is one step of SQLite's virtual machine, and no step can be interrupted."""
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
    """Set the limits of a connection; `memory` is for the whole process, in bytes, and can never be raised."""
    for limit, most in _LIMITS.items():
        driver.setlimit(limit, most)
    # The only limit on the memory for parsing a statement: no handler is called meanwhile.
    if memory is not None:
        driver.execute(f"PRAGMA hard_heap_limit = {memory:d}")
    driver.execute("PRAGMA trusted_schema = OFF")  # no function with effects in views or triggers of the file


class Guard:
    """Authorizer of a connection: decides which actions statements may take.

    Args:
        driver: the connection.
        writes: whether tables may be changed.
    """

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
    def trusted(self) -> Generator[None]:
        """Allow all actions within the block, for statements of this package."""
        self._is_trusted = True
        try:
            yield
        finally:
            self._is_trusted = False

    @contextmanager
    def transaction(self, driver: sqlite3.Connection) -> Generator[None]:
        """Commit the block's changes, or roll all of them back."""
        with self.trusted():
            driver.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._end(driver, "COMMIT")
        except BaseException:
            if driver.in_transaction:  # otherwise SQLite has rolled it back already
                self._end(driver, "ROLLBACK")
            raise

    def _end(self, driver: sqlite3.Connection, how: str) -> None:
        driver.set_progress_handler(None, 0)  # COMMIT and ROLLBACK must not be interrupted
        with self.trusted():
            driver.execute(how)


_DENY: int = sqlite3.SQLITE_DENY
