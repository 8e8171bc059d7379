"""`SqlDatabase` and `WritableSqlDatabase`: actors with tools for a database, and the choice of its backend."""

import re
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import anyio

from callboard import Actor, handler, idempotency_key, remaining, running
from callboard.middleware import approved_arguments
from callboard_actors._util._options import check_counts, check_durations, needs
from callboard_actors.sql._rows import Caps, Rows, SqlError
from callboard_actors.sql._work import Backend, Job, Once, run

if TYPE_CHECKING:
    import sqlalchemy

# Choice of the backend.

LEAST_MEMORY = 16 * 1024**2
"""Minimum memory limit in bytes: SQLite needs this for a few connections with values of the largest size."""
_REMEDY = "give it one such as 'sqlite:///shop.db' or 'postgresql://reader@localhost/shop'"


def parsed(whose: str, url: object) -> "sqlalchemy.URL":
    """Return a parsed URL of SQLite or PostgreSQL; raise ValueError or TypeError for any other URL."""
    for package in ("sqlalchemy", "psycopg"):
        needs(whose, package, extra="sql")
    import sqlalchemy
    from sqlalchemy.exc import ArgumentError

    if not isinstance(url, str):
        raise TypeError(f"{whose}(url) is a text, got {type(url).__name__}; {_REMEDY}")
    try:
        found = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(f"{whose}(url) cannot be read; {_REMEDY}") from None  # there may be a password in it
    kind = found.drivername.partition("+")[0]
    if kind not in ("sqlite", "postgresql", "postgres"):
        raise ValueError(f"{whose}('{found.drivername}://...') is for SQLite and PostgreSQL; {_REMEDY}")
    if kind == "sqlite" and (found.database in (None, "", ":memory:") or found.query):
        raise ValueError(f"{whose}({found.render_as_string()!r}) is no file, and nobody else could see it; {_REMEDY}")
    return found


def backend_of(url: "sqlalchemy.URL", connections: int, memory: int | None, *, writes: bool) -> Backend:
    """Return the backend for the kind of database that a URL names. The database is not opened yet."""
    if url.drivername.startswith("sqlite"):
        from callboard_actors.sql._sqlite import SqliteBackend

        assert url.database is not None
        return SqliteBackend(Path(url.database), connections, memory, writes=writes)
    from callboard_actors.sql._postgres import PostgresBackend

    return PostgresBackend(url, connections)


# The actor.

T = TypeVar("T")

_MOST_TIME = 0.8
"""Share of the call's remaining time that a statement may use; the rest is for the tool's answer."""
_SENDABLE = "Write whole characters, and whole numbers of at most 64 bits; a longer one is a text."


class SqlDatabase(Actor):
    """Actor that gives a model read access to a database, by the tools `schema`, `describe` and `query`.

        node = ToolNode([SqlDatabase("sqlite:///shop.db")])

        async with SqlDatabase("sqlite:///shop.db") as db:
            rows = await db.query("select name from item where id = :id", {"id": 3})

    SQLite's file is opened for reading only. PostgreSQL runs each statement as the query of a cursor, in a transaction
    that only reads. A role that may reach beyond the database is refused.

    Args:
        url: "sqlite:///shop.db", an existing file, or "postgresql://reader:password@host/shop".
        timeout: seconds for a statement; the database stops it then, or when its call is cancelled.
        max_rows: rows of an answer; at most one row more is computed, where the statement allows that.
        max_bytes: of the text of an answer.
        max_value: characters or bytes of a value; longer values are cut, by the server where there is one.
        connections: statements that run at the same time; others wait.
        memory: bytes for SQLite in this process, shared by all its users; `None` for no limit. The lowest number ever
            given holds until the process ends: SQLite has no other limit for the parsing of a statement.

    Raises:
        ValueError: for a URL of another kind of database, or a number out of range.
        ImportError: if SQLAlchemy or psycopg is missing.
    """

    groups: ClassVar[Any] = {}
    _writes: ClassVar[bool] = False

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 10.0,
        max_rows: int = 100,
        max_bytes: int = 20_000,
        max_value: int = 1_000,
        connections: int = 4,
        memory: int | None = None,
    ) -> None:
        name = type(self).__name__
        self._url = parsed(name, url)
        check_durations(name, timeout=timeout)
        counts = [("max_rows", max_rows, 1), ("max_bytes", max_bytes, 100), ("max_value", max_value, 1)]
        counts += [("connections", connections, 1)]
        counts += [("memory", LEAST_MEMORY if memory is None else memory, LEAST_MEMORY)]
        check_counts(name, counts)
        if memory is not None and not self._url.drivername.startswith("sqlite"):
            raise ValueError(f"{name}(memory={memory!r}) is for SQLite; a server has its own limits, such as work_mem")
        self._timeout, self._memory = timeout, memory
        self._caps = Caps(rows=max_rows, bytes=max_bytes, value=max_value)
        self._connections = connections
        self._block: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        """Run the database as an actor while the `async with` block runs; the same as `running(...)`.

        Raises:
            ActorStartError: if the database does not exist, or its role may do too much.
            RuntimeError: if it is open already.
        """
        if self._block is not None:
            raise RuntimeError(f"{self!r} is open already; one block at a time")
        self._block = AsyncExitStack()
        try:
            return await self._block.enter_async_context(running(self))
        except BaseException:
            self._block = None
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        block, self._block = self._block, None
        assert block is not None
        return bool(await block.__aexit__(kind, error, traceback))

    async def start(self) -> None:
        """Open the database, and check that it exists and that its login role does not have too many permissions.

        Raises:
            SqlError: if the database does not exist, or its role may do too much.
        """
        self._backend: Backend = backend_of(self._url, self._connections, self._memory, writes=self._writes)
        (await self.enter(ExitStack())).callback(self._backend.close)
        # As many as connections: a statement waits here, where it can be cancelled, and not in the pool's thread.
        self._places = anyio.CapacityLimiter(self._connections)
        await self._run(self._backend.check)

    async def _run(self, work: Callable[[Job], T]) -> T:
        async with self._places:
            try:
                return await run(work, max(0.05, min(self._timeout, _MOST_TIME * remaining())))
            except (UnicodeEncodeError, OverflowError) as error:  # raised by drivers before the database sees the value
                raise SqlError(f"That cannot be sent to the database: {error}. {_SENDABLE}") from error
            except MemoryError as error:
                raise SqlError("It takes more memory than there is. Ask for less, or for a part of it.") from error

    @handler(group="statements")
    async def schema(self) -> str:
        """List the tables and views with their columns, types and keys, and about how many rows they have."""
        from callboard_actors.sql._schema import outline

        return await self._run(lambda job: outline(self._backend, self._caps.bytes, job))

    @handler(group="statements")
    async def describe(self, table: str) -> str:
        """Describe one table: columns, defaults, keys, references and indexes."""
        from callboard_actors.sql._schema import description

        return await self._run(lambda job: description(self._backend, table, job))

    @handler(group="statements")
    async def query(self, statement: str, parameters: Mapping[str, object] | None = None) -> Rows:
        """Run one SELECT statement and read its rows.

        Values belong in `parameters`, by name: `where id = :id` with {"id": 3}.
        """
        return await self._run(lambda job: self._backend.query(statement, parameters or {}, self._caps, job))


# Changes, only with a person's approval.

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class WritableSqlDatabase(SqlDatabase):
    """`SqlDatabase` with an additional tool, `execute`, by which a model can change the database.

        node = ToolNode([WritableSqlDatabase("sqlite:///shop.db")], middleware=[RequireApproval(["execute"])])

    `execute` runs only the statement and parameters that a person approved in `RequireApproval`. The database records
    each executed call in the transaction of its change. A call that is repeated because its outcome is unknown changes
    nothing, and returns the number of rows that it had changed.

    Args:
        url: of the database.
        approve: whether a person must have approved. Without it, `execute` runs everything that a model writes.
        once: table of the executed calls, created when needed; with `None`, repeated calls change the data again.
        options: of `SqlDatabase`.

    Raises:
        ValueError: for an invalid table name.
    """

    _writes = True

    def __init__(
        self, url: str, *, approve: bool = True, once: str | None = "callboard_executed", **options: Any
    ) -> None:
        super().__init__(url, **options)
        if once is not None and not _NAME.fullmatch(once):
            raise ValueError(f"WritableSqlDatabase(once={once!r}) is the name of a table: letters, digits and _")
        self._approve = approve
        self._once = once

    @handler(group="statements")
    async def execute(self, statement: str, parameters: Mapping[str, object] | None = None) -> Rows:
        """Run one statement that changes the database, such as INSERT, UPDATE or DELETE, in its own transaction.

        Values belong in `parameters`, by name: `where id = :id` with {"id": 3}.
        """
        if self._approve:
            _check_approved(statement, parameters)
        once = None if self._once is None or (key := _key()) is None else Once(self._once, key)
        return await self._run(lambda job: self._backend.execute(statement, parameters or {}, self._caps, job, once))


def _check_approved(statement: str, parameters: Mapping[str, object] | None) -> None:
    """Raise RuntimeError unless a person has approved exactly this statement and these parameters."""
    approved = approved_arguments()
    if approved is None:
        raise RuntimeError(
            "WritableSqlDatabase.execute changes the database, and nobody was asked. Give the node or the agent "
            "middleware=[RequireApproval(['execute'])], or say that nobody has to be: "
            "WritableSqlDatabase(url, approve=False)"
        )
    if approved.get("statement") != statement or (approved.get("parameters") or {}) != (parameters or {}):
        raise RuntimeError(
            "WritableSqlDatabase.execute was given something else than a person has agreed to; a middleware within "
            "RequireApproval must not change its arguments"
        )


def _key() -> str | None:
    try:
        return idempotency_key()
    except RuntimeError:
        return None  # no tool call: a program calls, and knows itself what it has executed
