"""PostgreSQL backend: a statement can only be the query of a cursor, in a transaction that only reads.

A cursor's query is a SELECT, VALUES or TABLE without data-modifying parts. PostgreSQL refuses everything else before
it runs anything: SET, COMMIT, DO, COPY, CALL. A Parse message carries one statement only. The effects of functions
are bounded by the role, which is checked when the database is opened, and are undone with the transaction.
"""

import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy
from psycopg import pq, sql
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from callboard_actors.sql._backend import Once, Parameters
from callboard_actors.sql._errors import SqlError
from callboard_actors.sql._postgres_columns import BYTES, Column, whole_values
from callboard_actors.sql._postgres_errors import explained
from callboard_actors.sql._postgres_query import DECLARE, Query, query_of
from callboard_actors.sql._postgres_role import check_role
from callboard_actors.sql._postgres_values import add_adapters, plain
from callboard_actors.sql._rows import Caps, Rows, gather
from callboard_actors.sql._work import Job

_FETCHED = 10
"""Rows in one fetch; at most this many values of the largest size are in memory."""
_CANCEL = 2.0
"""Seconds that a server has to accept a cancel request."""


class _Stop:
    """Stops a statement of PostgreSQL from another thread."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def cancel(self) -> None:
        try:
            self._connection.cancel_safe(timeout=_CANCEL)
        except psycopg.Error:
            self.cut()  # the server cannot be reached; it stops the statement when it notices the closed connection

    def cut(self) -> None:
        with socket.socket(fileno=socket.dup(self._connection.fileno())) as other:
            other.shutdown(socket.SHUT_RDWR)


class PostgresBackend:
    """Database on a PostgreSQL server.

    Args:
        url: of the database.
        connections: largest number of connections.
    """

    def __init__(self, url: sqlalchemy.URL, connections: int) -> None:
        self._engine = sqlalchemy.create_engine(
            url.set(drivername="postgresql+psycopg"),
            isolation_level="AUTOCOMMIT",  # each transaction is begun explicitly, as READ ONLY or READ WRITE
            pool_size=connections,
            max_overflow=0,
            pool_pre_ping=True,
            pool_reset_on_return=None,  # `_reset` does it, more thoroughly
            hide_parameters=True,
            connect_args={
                "application_name": "callboard sql",
                "connect_timeout": 10,
                "prepare_threshold": None,
                "options": f"{url.query.get('options', '')} -c default_transaction_read_only=on".strip(),
            },
        )
        event.listen(self._engine, "connect", _connected)

    def check(self, job: Job) -> None:
        with self.reading(job) as connection:
            check_role(_driver(connection))

    @contextmanager
    def reading(self, job: Job) -> Generator[sqlalchemy.Connection]:
        with self._transaction(job, "READ ONLY") as connection:
            yield connection

    @contextmanager
    def _transaction(self, job: Job, mode: str) -> Generator[sqlalchemy.Connection]:
        """Open a transaction that is rolled back unless the block commits."""
        try:
            with self._engine.connect() as connection:
                driver = _driver(connection)
                try:
                    with job.stoppable(_Stop(driver)):
                        _begin(driver, mode, job)
                        yield connection
                    _reset(driver)
                except BaseException:
                    self._leave(connection, job)
                    raise
        except DBAPIError as error:
            raise explained(error.orig, job) from error
        except psycopg.Error as error:
            raise explained(error, job) from error

    def _leave(self, connection: sqlalchemy.Connection, job: Job) -> None:
        """Clean up after an error; close a connection with a pending cancel, which could hit its next statement."""
        if job.stopped is None:
            try:
                _reset(_driver(connection))
            except psycopg.Error:
                pass
            else:
                return
        connection.invalidate()

    def query(self, statement: str, parameters: Parameters, caps: Caps, job: Job) -> Rows:
        with self.reading(job) as connection:
            driver, query = _driver(connection), query_of(statement, parameters, only_reads=True)
            with _errors(driver, query, job):
                # Parsed alone first: only a complete statement is put into the parentheses of `within`.
                columns = _columns(driver, query)
            if not columns:
                raise SqlError("That gives no columns; name some.")
            cut = query.within(columns, caps)
            with _errors(driver, cut, job):
                rows = whole_values(columns, _fetched(driver, cut, caps))
                return gather([column.name for column in columns], rows, caps)

    def execute(self, statement: str, parameters: Parameters, caps: Caps, job: Job, once: Once | None) -> Rows:
        query = query_of(statement, parameters, only_reads=False)
        with self._transaction(job, "READ WRITE") as connection:
            driver = _driver(connection)
            with _errors(driver, query, job):
                # In the same transaction as the change: either both are committed, or none.
                if once is not None and (before := _executed_before(driver, once)) is not None:
                    return before
                found = _executed(driver, query, caps)
                if once is not None:
                    _note(driver, once, found.changed)
            _commit(driver)
            return found

    def row_estimates(self, connection: sqlalchemy.Connection, tables: Sequence[str]) -> Mapping[str, str]:
        found = _driver(connection).execute(
            "SELECT name, reltuples::bigint FROM unnest(%s::text[]) AS name"
            " JOIN pg_class ON pg_class.oid = to_regclass(name)",
            [[*tables]],
        )
        return {table: f"about {count:,}" if count >= 0 else "unknown" for table, count in found}

    def close(self) -> None:
        self._engine.dispose()


def _connected(driver: psycopg.Connection[Any], _: object) -> None:
    add_adapters(driver)


def _driver(connection: sqlalchemy.Connection) -> psycopg.Connection[Any]:
    driver: Any = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def _begin(driver: psycopg.Connection[Any], mode: str, job: Job) -> None:
    driver.execute(f"BEGIN {mode}".encode())
    driver.execute(f"SET LOCAL statement_timeout = {max(1, int(job.left * 1000))}".encode())
    if driver.info.server_version >= 140_000:  # stops the statement of a client that was killed
        driver.execute("SET LOCAL client_connection_check_interval = '2s'")


def _reset(driver: psycopg.Connection[Any]) -> None:
    """Undo everything uncommitted, and everything else that a session keeps: settings, locks, temporary tables."""
    driver.execute("ROLLBACK")
    driver.execute("DISCARD ALL")


def _send(driver: psycopg.Connection[Any], text: str, query: Query) -> psycopg.Cursor[Any]:
    # Binary, because psycopg then uses the extended protocol even without parameters: it accepts one statement only.
    return driver.cursor(binary=True).execute(text.encode(), query.parameters)


def _columns(driver: psycopg.Connection[Any], query: Query) -> list[Column]:
    """Return the columns of a query without running it."""
    _send(driver, DECLARE + query.text, query)
    described = driver.execute("FETCH 0 FROM callboard").description or ()
    driver.execute("CLOSE callboard")
    return [Column(one.name, one.type_code) for one in described]


def _fetched(driver: psycopg.Connection[Any], query: Query, caps: Caps) -> Iterator[tuple[Any, ...]]:
    _send(driver, DECLARE + query.text, query)
    fetch = f"FETCH {min(_FETCHED, caps.rows + 1)} FROM callboard".encode()
    while rows := driver.execute(fetch).fetchall():
        yield from rows


def _executed(driver: psycopg.Connection[Any], query: Query, caps: Caps) -> Rows:
    cursor = _send(driver, query.text, query)
    if cursor.description is None:
        found = Rows((), ())
    else:
        columns = cursor.description
        found = gather([one.name for one in columns], ([*map(_readable, row, columns)] for row in cursor), caps)
    is_change = (cursor.statusmessage or "").partition(" ")[0] in ("INSERT", "UPDATE", "DELETE", "MERGE")
    return Rows(found.columns, found.values, found.more, cursor.rowcount if is_change else None)


def _readable(value: object, column: psycopg.Column) -> object:
    """Return a readable value: types unknown to psycopg arrive as bytes, which for most of them are their text."""
    if isinstance(value, bytes) and column.type_code != BYTES:
        return value.decode(errors="replace")
    return plain(value)


def _commit(driver: psycopg.Connection[Any]) -> None:
    try:
        driver.execute("COMMIT")
    except psycopg.OperationalError as error:
        if driver.info.transaction_status == pq.TransactionStatus.UNKNOWN:
            raise SqlError(
                "The connection was lost while the change was made permanent: whether it was is unknown. Look, before "
                "it is done again."
            ) from error
        raise


@contextmanager
def _errors(driver: psycopg.Connection[Any], query: Query, job: Job) -> Generator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise explained(error, job, query, driver) from error


def _executed_before(driver: psycopg.Connection[Any], once: Once) -> Rows | None:
    table = sql.Identifier(once.table)
    found = driver.execute("SELECT to_regclass(quote_ident(%s)) IS NOT NULL", [once.table]).fetchone()
    if not found or not found[0]:
        driver.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {}"
                " (key text PRIMARY KEY, changed bigint, at timestamptz NOT NULL DEFAULT now())"
            ).format(table)
        )
    # Before the statement: another process with the same key waits at this insert until this transaction has ended.
    made = driver.execute(sql.SQL("INSERT INTO {} (key) VALUES (%s) ON CONFLICT DO NOTHING").format(table), [once.key])
    if made.rowcount:
        return None
    changed = driver.execute(sql.SQL("SELECT changed FROM {} WHERE key = %s").format(table), [once.key]).fetchone()
    return Rows((), (), changed=changed and changed[0], note="It had been executed before, by this call.")


def _note(driver: psycopg.Connection[Any], once: Once, changed: int | None) -> None:
    table = sql.Identifier(once.table)
    driver.execute(sql.SQL("UPDATE {} SET changed = %s WHERE key = %s").format(table), [changed, once.key])
