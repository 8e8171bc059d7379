"""PostgreSQL for savers and stores by URL: how a server is reached, and what its errors mean."""

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
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

from callboard._langgraph._postgres import forget, gone_values
from callboard.agent._conversation._database import LazySaver, LazyStore
from callboard.exceptions import StorageError

T = TypeVar("T", bound=PostgresSaver | PostgresStore)

CONNECTIONS = 8
"""At most, for each saver and each store."""

_DEFAULTS: dict[str, Any] = {
    "fallback_application_name": "callboard",
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
}
"""In libpq's units: seconds to connect, milliseconds until a server that does not answer is given up."""

_OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
"""Of each connection, as LangGraph asks for."""

_LOCK = 0x63616C6C626F6172
"""For PostgreSQL's advisory lock around the making of tables: "callboar" in ASCII."""

_AGAIN = 0.05
"""Seconds between two attempts to get that lock."""


def postgres_saver(url: str, types: Iterable[type]) -> LazySaver:
    """A saver that keeps what it is given on a server, of the types that are allowed.

    Raises:
        ValueError: if it is no URL of a server.
    """
    # What the version after another one is does not depend on the saver.
    next_version = partial(PostgresSaver.get_next_version, cast("Any", None))
    return LazySaver(PostgresServer(url, _saver, "checkpoint_migrations"), next_version, types)


def postgres_store(url: str) -> LazyStore:
    """A store that keeps what it is given on a server.

    Raises:
        ValueError: if it is no URL of a server.
    """
    return LazyStore(PostgresServer(url, _store, "store_migrations"))


class _Saver(PostgresSaver):
    """Forgets the values that a checkpoint is stored again without."""

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        stored = super().put(config, checkpoint, metadata, new_versions)
        conf = stored["configurable"]
        if gone := gone_values(conf["thread_id"], conf["checkpoint_ns"], checkpoint, new_versions):
            forget(self, gone)
        return stored


def _saver(connections: Any) -> PostgresSaver:
    saver = _Saver(connections)
    # Its lock is for a single connection. Ours are a pool, and each operation has one to itself.
    cast("Any", saver).lock = nullcontext()
    return saver


def _store(connections: Any) -> PostgresStore:
    store = PostgresStore(connections)
    cast("Any", store).lock = nullcontext()
    return store


class PostgresServer(Generic[T]):
    """A database on a server.

    Args:
        url: of the database; what it leaves open, libpq's environment variables say.
        make: makes a saver or a store on a connection or a pool.
        versions: the table with the versions of its tables.
    """

    def __init__(self, url: str, make: Callable[[Any], T], versions: str) -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            # The driver's text may quote the password.
            raise ValueError(
                "That is no URL of a PostgreSQL database: write postgresql://user:password@host:port/database, "
                "with special characters in percent-encoding"
            ) from None
        self._conninfo = make_conninfo("", **{**_DEFAULTS, **given})
        self._where = f"{given.get('host', 'localhost')}:{given.get('port', 5432)}/{given.get('dbname', '')}"
        self._make = make
        self._versions = versions

    def __str__(self) -> str:
        return f"The PostgreSQL database {self._where!r}"

    def open(self) -> T:
        # A pool would try again and again and then say that it took too long; a connection says what is wrong.
        with Connection[DictRow].connect(self._conninfo, **_OPTIONS) as connection:
            self._prepare(connection, self._make(connection))
        return self._make(ConnectionPool(self._conninfo, kwargs=_OPTIONS, min_size=0, max_size=CONNECTIONS, open=True))

    def _prepare(self, connection: Connection[DictRow], first: T) -> None:
        """Make the tables, unless they are there; one process at a time."""
        latest = len(first.MIGRATIONS) - 1
        while (version := self._version(connection)) < latest:
            # To wait for the lock would be to hold up what the other one does: it builds indexes concurrently,
            # for which it waits until every statement of others has ended.
            with _advisory_lock(connection) as is_ours:
                if is_ours:
                    first.setup()
            if not is_ours:
                time.sleep(_AGAIN)
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
        cast("Any", opened.conn).close()

    def is_lost(self, error: Exception) -> bool:
        # A pool that is too slow is no less so when it is new.
        return isinstance(error, psycopg.OperationalError) and not isinstance(error, PoolTimeout)

    @contextmanager
    def explained(self) -> Generator[None]:
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


@contextmanager
def _advisory_lock(connection: Connection[DictRow]) -> Generator[bool]:
    """The lock around the making of tables, if nobody else has it."""
    row = connection.execute("SELECT pg_try_advisory_lock(%s) AS ours", (_LOCK,)).fetchone()
    is_ours = row is not None and bool(row["ours"])
    try:
        yield is_ours
    finally:
        if is_ours:
            connection.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
