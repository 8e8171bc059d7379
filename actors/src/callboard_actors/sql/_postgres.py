"""PostgreSQL backend: runs statements within limits; a statement that reads runs in a read-only transaction.

A cursor's query is a SELECT, VALUES or TABLE without data-modifying parts. PostgreSQL refuses everything else before
it runs anything: SET, COMMIT, DO, COPY, CALL. A Parse message carries one statement only. The effects of functions
are bounded by the role, which is checked when the database is opened, and are undone with the transaction.
"""

import datetime as dt
import decimal
import re
import socket
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import psycopg
import sqlalchemy
from psycopg import errors, pq
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.types import datetime as times
from psycopg.types.json import JsonbDumper
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from callboard_actors.sql._rows import Caps, Cut, Rows, SqlError, did_you_mean, gather, pointed
from callboard_actors.sql._work import Job, Once, Parameters

# Columns; values that may be long are cut by the server.

_SHORT = {16, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1186, 1266, 2950}
"""Type numbers (OIDs) of types whose values are short: booleans, numbers, dates and times, UUIDs.

The server cuts long values of most other types; these arrive as text (see `Column.cut`).
"""
_NUMERIC = 1700
BYTES = 17
"""Type number (OID) of `bytea`, PostgreSQL's raw bytes."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a query result; `type` is PostgreSQL's number (OID) for the type of its values."""

    name: str
    type: int

    @property
    def is_cut(self) -> bool:
        """True if the server may cut long values of this column. It then also sends the full length of each value."""
        return self.type not in _SHORT and self.type != _NUMERIC

    def cut(self, name: str, most: int) -> str:
        """Return SQL for the column `name`: its value or, if it can be cut, its first `most` units and its length."""
        if not self.is_cut:
            return name
        if self.type == BYTES:
            return f"substr({name}, 1, {most}), octet_length({name})"
        return f"left({name}::text, {most}), length({name}::text)"


def whole_values(columns: Sequence[Column], rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows, with a `Cut` (beginning and full length) in place of each value that the server has cut."""
    for row in rows:
        parts = iter(row)
        yield tuple(_value(next(parts), next(parts)) if column.is_cut else next(parts) for column in columns)


def _value(begin: Any, length: int | None) -> object:
    if begin is None or length is None or len(begin) >= length:
        return begin
    return Cut(begin, length)


# Statements.

DECLARE = "DECLARE callboard NO SCROLL CURSOR FOR "
"""Text that is put before a query to make it the query of a cursor."""
_NAMED = re.compile(r"(?<![:\w]):(\w+)")
"""Pattern of a possible parameter `:name`. In `x::int` it finds none, in `:id::int` it finds `id`."""
_SENT = re.compile(r"%\((\w+)\)s|%%")


@dataclass(frozen=True, slots=True)
class Query:
    """SQL statement in psycopg's form, with its parameters."""

    text: str
    """Text of the statement for psycopg, with `%(name)s` for each parameter."""
    parameters: Parameters
    only_reads: bool
    is_wrapped: bool = False
    """True if the author's statement is only a part of `text`; PostgreSQL's error positions then do not refer to it."""

    @property
    def read(self) -> str:
        """Text of the statement with numbered parameters (`$1`, `$2`), as PostgreSQL reads it."""
        numbers: dict[str, int] = {}

        def numbered(found: re.Match[str]) -> str:
            return f"${numbers.setdefault(found[1], len(numbers) + 1)}" if found[1] else "%"

        return _SENT.sub(numbered, self.text)

    def within(self, columns: Sequence[Column], caps: Caps) -> "Query":
        """Return a query for the same rows, but at most one more than `caps.rows`; the server cuts long values."""
        names = ", ".join(f"c{number}" for number in range(len(columns)))
        items = ", ".join(column.cut(f"c{number}", caps.value) for number, column in enumerate(columns))
        inner = self.text.rstrip().rstrip(";")
        # The statement must have been parsed alone before. Otherwise a part of its text could leave the parentheses.
        text = f"SELECT {items} FROM (\n{inner}\n) AS answer ({names}) LIMIT {caps.rows + 1}"  # noqa: S608 (see above)
        return replace(self, text=text, is_wrapped=True)


def query_of(statement: str, parameters: Parameters, *, only_reads: bool) -> Query:
    """Convert a statement with parameters such as `:name` to a `Query`; raise SqlError if the statement is empty."""
    if not statement.strip() or "\0" in statement:
        raise SqlError("The statement is empty, or there is a NUL character in it.")
    used: dict[str, object] = {}

    def placed(found: re.Match[str]) -> str:
        name = found[1]
        # A name without a value is text, such as a time in a literal.
        if name not in parameters:
            return found[0]
        used[name] = parameters[name]
        return f"%({name})s"

    return Query(_NAMED.sub(placed, statement.replace("%", "%%")), used, only_reads)


# Errors, as texts that a model can act on.

_MISSING = re.compile(r'(?:relation|column) "?(.+?)"? does not exist')
_NAMES = """
SELECT relname FROM pg_class WHERE relkind IN ('r', 'v', 'm', 'p', 'f') AND pg_table_is_visible(oid)
  AND relnamespace <> 'pg_catalog'::regnamespace
UNION
SELECT attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE attnum > 0 AND relkind IN ('r', 'v', 'm', 'p', 'f') AND pg_table_is_visible(attrelid)
  AND relnamespace <> 'pg_catalog'::regnamespace
"""
_ONLY_A_QUERY = "A query is one SELECT, VALUES or TABLE, and changes nothing."


def _explained(
    error: BaseException | None,
    job: Job,
    query: Query | None = None,
    driver: psycopg.Connection[Any] | None = None,
) -> SqlError:
    """Return an SqlError that explains to a model why a statement failed or was stopped."""
    # `query` and `driver` are the failed statement and its connection, if there was a statement.
    if isinstance(error, errors.QueryCanceled) or job.stopped is not None:
        return SqlError(f"It was stopped after {job.seconds:g} s. Ask for less, or for a part of it.")
    if not isinstance(error, psycopg.Error) or not error.diag.message_primary:
        said = str(error).strip().partition("\n")[0]
        if isinstance(error, psycopg.DataError):
            return SqlError(f"{said.rstrip('.')}. Ask for it as a text, or give it as one: value::text.")
        is_away = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        return SqlError(f"The database does not answer: {said}" if is_away else f"{said}.")
    told = error.diag
    said = f"{told.message_primary}{_meant(error, driver) or '.'}"
    said += "".join(f" {part}" for part in (told.message_detail, told.message_hint) if part)
    return SqlError(said + _remedy(error, query) + _place(error, query))


def _meant(error: psycopg.Error, driver: psycopg.Connection[Any] | None) -> str:
    """Return the end of an error sentence, with existing names similar to an unknown name; "" if there are none."""
    # It is empty, too, if PostgreSQL already suggests a name in its hint.
    found = _MISSING.fullmatch(error.diag.message_primary or "")
    if found is None or error.diag.message_hint or driver is None:
        return ""
    try:
        driver.execute("ROLLBACK")
        names = [name for (name,) in driver.execute(_NAMES)]
    except psycopg.Error:
        return ""  # suggestions are optional
    return did_you_mean(found[1], names)


def _remedy(error: psycopg.Error, query: Query | None) -> str:
    if query is None or not query.only_reads:
        return ""
    is_other = isinstance(error, (errors.SyntaxError, errors.ReadOnlySqlTransaction, errors.FeatureNotSupported))
    return f" {_ONLY_A_QUERY}" if is_other or isinstance(error, errors.InvalidCursorDefinition) else ""


def _place(error: psycopg.Error, query: Query | None) -> str:
    position = error.diag.statement_position
    if query is None or position is None or query.is_wrapped:
        return ""
    start = len(DECLARE) if query.only_reads else 0
    return pointed(query.read, max(1, int(position) - start))


# Values that Python cannot represent; they become the text that the server writes.

_TIMES: dict[str, type[Loader]] = {
    "date": times.DateLoader,
    "time": times.TimeLoader,
    "timetz": times.TimetzLoader,
    "timestamp": times.TimestampLoader,
    "timestamptz": times.TimestamptzLoader,
    "interval": times.IntervalLoader,
}
_WITHOUT_DAYS = (b"year", b"mon")
"""Names of interval units without a fixed number of days: years and months."""
_PLAIN = (str, bytes, int, float, decimal.Decimal, dt.date, dt.time, dt.timedelta, uuid.UUID, dict, type(None))
"""Types of values that every checkpointer can store, and that can be read without a database driver."""


class _OrText(Loader):
    """Loader of psycopg for dates and times; it returns PostgreSQL's text for values that Python cannot represent."""

    kind: type[Loader]

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._reader = self.kind(oid, context)

    def load(self, data: Buffer) -> object:
        written = bytes(data)
        if self.kind is times.IntervalLoader and any(unit in written for unit in _WITHOUT_DAYS):
            return written.decode()
        try:
            return self._reader.load(data)
        except (psycopg.DataError, psycopg.NotSupportedError, NotImplementedError, OverflowError):
            return written.decode(errors="replace")


_LOADERS = {name: type(kind.__name__, (_OrText,), {"kind": kind}) for name, kind in _TIMES.items()}


def _add_adapters(driver: psycopg.Connection[Any], _: object) -> None:
    """Register psycopg adapters on a connection: loaders of dates and times, and a dumper of dicts as JSON."""
    for name, loader in _LOADERS.items():
        driver.adapters.register_loader(name, loader)
    driver.adapters.register_dumper(dict, JsonbDumper)


def _plain(value: object) -> object:
    """Convert a value to a plain type; values of other types, such as ranges, become texts, also inside lists."""
    if isinstance(value, list):
        return [_plain(one) for one in cast("list[object]", value)]
    return value if isinstance(value, _PLAIN) else str(value)


# Check of the role, for rights with effects that no transaction can undo.

_MAY = """
SELECT rolname FROM pg_roles
WHERE pg_has_role(session_user, oid, 'MEMBER') AND (rolsuper OR rolreplication OR rolname = ANY(%s))
ORDER BY rolname
"""
_REACHES_OUT = (
    "pg_read_server_files",
    "pg_write_server_files",
    "pg_execute_server_program",
    "pg_signal_backend",
    "pg_signal_autovacuum_worker",
)
_CALLS = """
WITH suspect (oid, why) AS (
  SELECT p.oid, 'PostgreSQL keeps from everybody' FROM pg_init_privs AS i
    JOIN pg_proc AS p ON i.classoid = 'pg_proc'::regclass AND i.objoid = p.oid
    WHERE NOT EXISTS (SELECT FROM aclexplode(i.initprivs) AS a WHERE a.grantee <> p.proowner)
  UNION ALL
  SELECT p.oid, 'is written in ' || l.lanname || ', which may do whatever the server may' FROM pg_proc AS p
    JOIN pg_language AS l ON l.oid = p.prolang AND l.lanispl AND NOT l.lanpltrusted
    WHERE p.prorettype <> ALL ('{trigger,event_trigger}'::regtype[])
  UNION ALL
  SELECT p.oid, 'connects to others' FROM pg_proc AS p
    JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
    JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
    WHERE e.extname || '.' || p.proname = ANY(%s)
), mine AS (SELECT oid FROM pg_roles WHERE pg_has_role(session_user, oid, 'MEMBER'))
SELECT DISTINCT why, p.oid::regprocedure::text FROM suspect JOIN pg_proc AS p USING (oid)
WHERE EXISTS (SELECT FROM mine WHERE has_schema_privilege(mine.oid, p.pronamespace, 'USAGE'))
  AND EXISTS (SELECT FROM mine WHERE has_function_privilege(mine.oid, p.oid, 'EXECUTE'))
ORDER BY 1, 2
"""
"""SQL query that lists all functions which a role may call and which can have effects outside of the transaction.

It counts all roles of which the role is a member, even without INHERIT: a query can switch to them with
`set_config('role', ...)`.
"""
_CONNECTS = (
    "aws_lambda.invoke",
    "aws_s3.query_export_to_s3",
    "dblink.dblink",
    "dblink.dblink_connect",
    "dblink.dblink_exec",
    "http.http",
    "pg_background.pg_background_launch",
)
"""Functions with which extensions reach other servers, and which every role may execute by default.

A role without these functions cannot reach another server by any function of the extension.
"""
_SHOWN = 5
"""Maximum number of functions that an error text names."""
_REMEDY = """Make a role that only reads, and use that:
CREATE ROLE reader LOGIN PASSWORD '...' NOSUPERUSER NOINHERIT;
GRANT USAGE ON SCHEMA public TO reader;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader;"""


def _check_role(driver: psycopg.Connection[Any]) -> None:
    """Raise SqlError if a SELECT of the login role could have effects outside of the database."""
    # The login role counts, because functions can undo a `SET ROLE`.
    roles = [name for (name,) in driver.execute(_MAY, [[*_REACHES_OUT]])]
    user = driver.info.user
    if roles:
        what = f"is, or is a member of, {', '.join(roles)}"
        raise SqlError(
            f"The role {user!r} {what}: a query may read the server's files, run programs or end sessions. {_REMEDY}"
        )
    if found := driver.execute(_CALLS, [[*_CONNECTS]]).fetchall():
        raise SqlError(_of_functions(user, found))


def _of_functions(user: str, found: Sequence[tuple[str, str]]) -> str:
    named = "; ".join(f"{function}, which {why}" for why, function in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f"The role {user!r} may call {named}{more}: a query reaches beyond the database. Have an administrator "
        f"REVOKE EXECUTE ON FUNCTION {found[0][1]} FROM PUBLIC, or from that role and those that it is a member of, "
        "and so for the others."
    )


# The backend.

_FETCHED = 10
"""Number of rows in one fetch. At most this many values of the largest size are in memory at a time."""
_CANCEL = 2.0
"""Maximum seconds for a server to accept a cancel request."""


def _cancel(driver: psycopg.Connection[Any]) -> None:
    """Stop the current statement of a connection; called from another thread."""
    try:
        driver.cancel_safe(timeout=_CANCEL)
    except psycopg.Error:
        _cut(driver)  # the server cannot be reached; it stops the statement when it notices the closed connection


def _cut(driver: psycopg.Connection[Any]) -> None:
    with socket.socket(fileno=socket.dup(driver.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)


class PostgresBackend:
    """Implementation of the protocol `Backend` for PostgreSQL, with a pool of connections to one database."""

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
        event.listen(self._engine, "connect", _add_adapters)

    def check(self, job: Job) -> None:
        with self.reading(job) as connection:
            _check_role(_driver(connection))

    def reading(self, job: Job) -> AbstractContextManager[sqlalchemy.Connection]:
        return self._transaction(job, "READ ONLY")

    @contextmanager
    def _transaction(self, job: Job, mode: str) -> Generator[sqlalchemy.Connection]:
        """Open a transaction for the `with` block. The transaction is rolled back unless the block commits it."""
        try:
            with self._engine.connect() as connection:
                driver = _driver(connection)
                try:
                    with job.stoppable(partial(_cancel, driver), partial(_cut, driver)):
                        _begin(driver, mode, job)
                        yield connection
                    _reset(driver)
                except BaseException:
                    self._leave(connection, job)
                    raise
        except DBAPIError as error:
            raise _explained(error.orig, job) from error
        except psycopg.Error as error:
            raise _explained(error, job) from error

    def _leave(self, connection: sqlalchemy.Connection, job: Job) -> None:
        """After an error, reset a connection, so that the pool can reuse it; close it if a reset is not possible."""
        # A connection with a pending cancel request is closed, because the cancel could hit its next statement.
        if job.stopped is None:
            with suppress(psycopg.Error):
                _reset(_driver(connection))
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
                if once is not None:
                    _make_table(driver, once.table)
                    if (before := once.begin(driver.execute, "%s")) is not None:
                        return before
                found = _executed(driver, query, caps)
                if once is not None:
                    once.end(driver.execute, "%s", found.changed)
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
    """Roll back a connection's transaction, and reset its session: settings, locks, temporary tables and the rest."""
    driver.execute("ROLLBACK")
    driver.execute("DISCARD ALL")


def _send(driver: psycopg.Connection[Any], text: str, query: Query) -> psycopg.Cursor[Any]:
    # Binary, because psycopg then uses the extended protocol even without parameters: it accepts one statement only.
    return driver.cursor(binary=True).execute(text.encode(), query.parameters)


def _columns(driver: psycopg.Connection[Any], query: Query) -> list[Column]:
    """Return the names and types of a query's columns, without running the query."""
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
    """Return a fetched value as plain data or text; a value whose type psycopg does not know becomes text."""
    # Values of types unknown to psycopg arrive as bytes, which for most of these types are their text.
    if isinstance(value, bytes) and column.type_code != BYTES:
        return value.decode(errors="replace")
    return _plain(value)


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
        raise _explained(error, job, query, driver) from error


def _make_table(driver: psycopg.Connection[Any], table: str) -> None:
    """Create the table for idempotency keys of executed statements, unless it exists."""
    # Looked up first: CREATE TABLE IF NOT EXISTS fails for a role that may not create tables, even if the table exists.
    found = driver.execute("SELECT to_regclass(quote_ident(%s)) IS NOT NULL", [table]).fetchone()
    if not found or not found[0]:
        columns = "(key text PRIMARY KEY, changed bigint, at timestamptz NOT NULL DEFAULT now())"
        driver.execute(f'CREATE TABLE IF NOT EXISTS "{table}" {columns}'.encode())
