"""PostgreSQL savers and stores: connections to a server, and explanations of its errors."""

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar, cast

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.store.postgres import PostgresStore
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, dict_row
from psycopg.sql import SQL, Identifier
from psycopg_pool import ConnectionPool, PoolTimeout

from callboard._langgraph._savers import forget, keys_of_removed_values
from callboard.conversations._database import LazySaver, LazyStore
from callboard.exceptions import StorageError

T = TypeVar("T", bound=PostgresSaver | PostgresStore)

CONNECTIONS = 8
"""Largest number of connections that each saver and each store opens."""

_DEFAULTS: dict[str, Any] = {
    "fallback_application_name": "callboard",
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
}
"""Default options of each connection, in libpq's units.

Seconds until an attempt to connect fails; milliseconds until a connection to an unresponsive server is closed.
"""

_OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
"""Options of each connection that LangGraph's saver and store require."""

_LOCK = 0x63616C6C626F6172
"""Id of the advisory lock that protects the creation of tables: "callboar" in ASCII."""

_RETRY_DELAY = 0.05
"""Seconds between two attempts to get the lock `_LOCK`."""


def open_saver(url: str, types: Iterable[type]) -> LazySaver:
    """Return a PostgreSQL saver that stores only values of `types` and of LangGraph's and LangChain's own types."""
    # Called without a saver: the method does not use it, and no connection is open yet.
    next_version = partial(PostgresSaver.get_next_version, cast("Any", None))
    make_saver = partial(_without_lock, _Saver)
    return LazySaver(PostgresServer(url, make_saver, "checkpoint_migrations"), next_version, types)


def open_store(url: str) -> LazyStore:
    return LazyStore(PostgresServer(url, partial(_without_lock, PostgresStore), "store_migrations"))


class _Saver(PostgresSaver):
    """LangGraph's PostgreSQL saver, which also deletes a value if its checkpoint is stored again without the value."""

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        stored = super().put(config, checkpoint, metadata, new_versions)
        conf = stored["configurable"]
        if removed_values := keys_of_removed_values(conf["thread_id"], conf["checkpoint_ns"], checkpoint, new_versions):
            forget(self, removed_values)
        return stored


def _without_lock(kind: Callable[[Any], T], connections: Any) -> T:
    resource = kind(connections)
    # LangGraph's lock protects a single connection. Here each operation has a connection of its own from the pool.
    cast("Any", resource).lock = nullcontext()
    return resource


class PostgresServer(Generic[T]):
    """Database on a PostgreSQL server, on which a saver or store can be opened and closed.

    `make` makes the saver or store on a connection. `versions` is the name of the table with the version of its tables.
    """

    def __init__(self, url: str, make: Callable[[Any], T], versions: str) -> None:
        try:
            options = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            # `from None`, because the driver's text may contain the password.
            raise ValueError(
                "That is no URL of a PostgreSQL database: write postgresql://user:password@host:port/database, "
                "with special characters in percent-encoding"
            ) from None
        self._conninfo = make_conninfo("", **{**_DEFAULTS, **options})
        self._location = f"{options.get('host', 'localhost')}:{options.get('port', 5432)}/{options.get('dbname', '')}"
        self._make = make
        self._versions = versions

    def __str__(self) -> str:
        return f"The PostgreSQL database {self._location!r}"

    def open(self) -> T:
        # First a single connection: it reports the cause of a failure, while a pool only retries until its timeout.
        with Connection[DictRow].connect(self._conninfo, **_OPTIONS) as connection:
            self._prepare(connection, self._make(connection))
        return self._make(ConnectionPool(self._conninfo, kwargs=_OPTIONS, min_size=0, max_size=CONNECTIONS, open=True))

    def _prepare(self, connection: Connection[DictRow], first: T) -> None:
        """Create the tables if they are missing; only one process at a time does so."""
        latest = len(first.MIGRATIONS) - 1
        while (version := self._version(connection)) < latest:
            # Never wait inside the database for the lock: the owner builds indexes concurrently, and that waits for all
            # statements of other connections. Both would wait for each other.
            with _advisory_lock(connection) as is_ours:
                if is_ours:
                    first.setup()
            if not is_ours:
                time.sleep(_RETRY_DELAY)
        if version > latest:
            raise StorageError(
                str(self),
                f"has tables of a newer version ({version}, known is {latest}). Nothing was changed. "
                "Upgrade langgraph-checkpoint-postgres",
            )

    def _version(self, connection: Connection[DictRow]) -> int:
        latest = SQL("SELECT max(v) AS v FROM {}").format(Identifier(self._versions))
        try:
            row = connection.execute(latest).fetchone()
        except psycopg.errors.UndefinedTable:
            return -1
        return -1 if row is None or row["v"] is None else int(row["v"])

    def close(self, opened: T) -> None:
        opened.conn.close()

    def join_writes(self, opened: T) -> AbstractContextManager[None]:
        return nullcontext()  # each operation has a connection of its own

    def is_gone(self) -> bool:
        return False

    def is_lost(self, error: Exception) -> bool:
        # A new pool would be no faster, so a pool timeout is not a lost connection.
        return isinstance(error, psycopg.OperationalError) and not isinstance(error, PoolTimeout)

    @contextmanager
    def explain_errors(self) -> Generator[None]:
        try:
            yield
        except PoolTimeout as error:
            reason = f"is too slow: all {CONNECTIONS} connections have been busy for too long. Try again"
            raise StorageError(str(self), reason) from error
        except psycopg.OperationalError as error:
            reason = f"cannot be reached: {_in_one_line(error)}. What was stored is safe there; try again"
            raise StorageError(str(self), reason) from error
        except psycopg.errors.InsufficientPrivilege as error:
            reason = f"refuses: {_in_one_line(error)}. Allow this user to make tables and to write them"
            raise StorageError(str(self), reason) from error
        except (psycopg.errors.DuplicatePreparedStatement, psycopg.errors.InvalidSqlStatementName) as error:
            # Another client has prepared statements on this connection of the server, or this client on another one.
            reason = (
                f"shares a connection with other clients: {_in_one_line(error)}. If a pooler such as PgBouncer stands "
                "before it, use the pooler's session mode, or the address of the server itself"
            )
            raise StorageError(str(self), reason) from error


@contextmanager
def _advisory_lock(connection: Connection[DictRow]) -> Generator[bool]:
    """Try once to take the lock for the creation of tables; yield `True` if this process holds it."""
    row = connection.execute("SELECT pg_try_advisory_lock(%s) AS ours", (_LOCK,)).fetchone()
    is_ours = row is not None and bool(row["ours"])
    try:
        yield is_ours
    finally:
        if is_ours:
            connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
