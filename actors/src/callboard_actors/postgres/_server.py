"""PostgreSQL server as one process sees it: URLs, connections, tables and functions, and the meaning of errors."""

from collections.abc import AsyncIterator, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.resources.abc import Traversable
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from callboard import StorageError
from callboard_actors._server._client import AwayError

_LEAST = 13
"""Oldest supported version of PostgreSQL."""
# Errors that may pass: trying again may help. A read-only transaction means a standby that may be promoted.
_NOT_NOW = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.ReadOnlySqlTransaction,
    OSError,
    TimeoutError,
)
# Some of these are subclasses of OperationalError, so they are caught before `_NOT_NOW`.
_NEVER = (errors.InvalidPassword, errors.InvalidAuthorizationSpecification, errors.InvalidCatalogName)


def check_url(whose: str, url: str) -> None:
    """Raise ValueError for a URL that PostgreSQL cannot parse; other texts of the parser may contain a password."""
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        said = str(error).strip() if "URI query parameter:" in str(error) else "is there a '%' or ':' to be quoted?"
        raise ValueError(f"{whose}(url) cannot be read: {said}") from None


class PostgresServer:
    """Connects to a database, for one kind of stored data.

    Args:
        whose: name of the user's class, for errors.
        noun: name of the stored data, for errors.
        url: of the database.
        where: the same, without a password.
    """

    def __init__(self, whose: str, noun: str, url: str, where: str) -> None:
        self._whose = whose
        self._noun = noun
        self._url = url
        self._where = where

    async def connect(self) -> Any:
        """Open a connection, within `errors`; raise StorageError if the server refuses this process."""
        name = f"callboard {self._noun.rpartition(' ')[2]}"
        try:
            # Autocommit: each function call is one transaction, so no lock outlives it.
            return await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, connect_timeout=5, application_name=name
            )
        except psycopg.OperationalError as error:
            # Before there is a connection, a wrong password or name has no error code: only the text tells it.
            if any(text in str(error) for text in ("authentication failed", "does not exist", "no password supplied")):
                raise StorageError(self._where, f"refuses us: {error}") from error
            raise

    async def make(self, connection: Any, script: Traversable, function: str) -> None:
        """Run the script unless `function`, its last one, exists; within `errors`. Raise StorageError if it may not."""
        if connection.info.server_version < _LEAST * 10_000:
            version = connection.info.server_version // 10_000
            raise StorageError(self._where, f"is PostgreSQL {version}; {self._noun} need {_LEAST} or later.")
        if await _is_made(connection, function):
            return
        try:
            async with connection.transaction():
                # CREATE ... IF NOT EXISTS is not safe against itself: two processes at once can both fail.
                await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [function[:16]])
                if not await _is_made(connection, function):  # another process may have created them meanwhile
                    await connection.execute(script.read_text())
        except errors.InsufficientPrivilege as error:
            remedy = f"Have somebody who may CREATE in the schema open {self._whose} once, or grant it."
            raise StorageError(
                self._where, f"has no tables for {self._noun}, and we may not make them: {error} {remedy}"
            ) from error

    @contextmanager
    def errors(self) -> Generator[None]:
        """Translate errors of the driver: `AwayError` if trying again may help, otherwise `StorageError`."""
        try:
            yield
        except _NEVER as error:
            raise StorageError(self._where, f"refuses us: {error}") from error
        except _NOT_NOW as error:
            raise AwayError(str(error) or type(error).__name__) from error
        except psycopg.Error as error:
            raise StorageError(self._where, f"cannot keep {self._noun}: {error}") from error


async def _is_made(connection: Any, function: str) -> bool:
    found = await connection.execute("SELECT to_regproc(%s) IS NOT NULL", [function])
    return bool((await found.fetchone())[0])


class PostgresConnection:
    """Two connections of one process to a server: one calls functions, the other receives notifications.

    Args:
        url: of the database.
        where: the same, without a password.
        prefix: of all stored data.
    """

    what: str
    """Noun for the stored data, for errors."""
    whose: str
    """Name of the user's class, for errors."""
    script: Traversable
    """Script that creates the tables and functions."""
    last: str
    """Function that the script creates last: if it exists, so does everything else."""

    def __init__(self, url: str, where: str, prefix: str) -> None:
        self._server = PostgresServer(self.whose, self.what, url, where)
        self._prefix = prefix
        self._client = ""
        # Two connections, because waiting for notifications would block the calls of functions.
        self._saying: Any = None
        self._hearing: Any = None

    async def _open(self, client: str, *channels: str) -> None:
        """Open both connections, create missing tables and functions, and listen on the channels."""
        self._client = client
        self._saying = await self._server.connect()
        await self._server.make(self._saying, self.script, self.last)
        self._hearing = await self._server.connect()
        for channel in channels:
            # Composed as an identifier: LISTEN takes no parameters, and the name contains the client's id.
            await self._hearing.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    async def _told(self) -> AsyncIterator[str]:
        """Yield the texts of the notifications on the channels."""
        with self._errors():
            async for notice in self._hearing.notifies():
                yield notice.payload

    async def close(self) -> None:
        """Close both connections in whatever state they are; never raises."""
        for one in (self._saying, self._hearing):
            if one is not None:
                with suppress(psycopg.Error, OSError):
                    await one.close()

    def _errors(self) -> AbstractContextManager[None]:
        return self._server.errors()
