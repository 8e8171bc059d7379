"""Two connections to PostgreSQL: one has functions called, the other hears what this process is told."""

from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress
from importlib.resources.abc import Traversable
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from callboard import StorageError
from callboard_actors._clerk import AwayError

_LEAST = 13
"""The oldest PostgreSQL that will do."""
_NOT_NOW = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.ReadOnlySqlTransaction,
    OSError,
    TimeoutError,
)
_NEVER = (errors.InvalidPassword, errors.InvalidAuthorizationSpecification, errors.InvalidCatalogName)


class PostgresConnection:
    """Two connections to a server, of one process.

    Args:
        url: of the database.
        where: the same, without a password.
        prefix: of all that is kept.
    """

    what: str
    """What is kept there, for errors."""
    whose: str
    """The class that a user has written, for errors."""
    script: Traversable
    """Makes tables and functions."""
    last: str
    """The function that is made last: if it is there, so is all else."""

    def __init__(self, url: str, where: str, prefix: str) -> None:
        self._url = url
        self._where = where
        self._prefix = prefix
        self._client = ""
        self._saying: Any = None
        self._hearing: Any = None

    def check(self) -> None:
        """Raise ValueError for a URL that PostgreSQL does not read; what else it says may be a password."""
        try:
            conninfo_to_dict(self._url)
        except psycopg.ProgrammingError as error:
            said = str(error).strip() if "URI query parameter:" in str(error) else "is there a '%' or ':' to be quoted?"
            raise ValueError(f"{self.whose}(url) cannot be read: {said}") from None

    async def _open(self, client: str, *channels: str) -> None:
        """Connect, and listen."""
        self._client = client
        self._saying = await self._connect()
        await self._make()
        self._hearing = await self._connect()
        for channel in channels:
            await self._hearing.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    async def _connect(self) -> Any:
        try:
            return await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, connect_timeout=5, application_name=f"callboard {self.what}"
            )
        except psycopg.OperationalError as error:
            # What is wrong with a password or a name is said in words only, before there is a connection.
            if any(text in str(error) for text in ("authentication failed", "does not exist", "no password supplied")):
                raise StorageError(self._where, f"refuses us: {error}") from error
            raise

    async def _make(self) -> None:
        """Have the tables and functions there.

        Raises:
            StorageError: if the server is too old, or they cannot be made.
        """
        if self._saying.info.server_version < _LEAST * 10_000:
            version = self._saying.info.server_version // 10_000
            raise StorageError(self._where, f"is PostgreSQL {version}; {self.what} need {_LEAST} or later.")
        if await self._is_made():
            return
        try:
            async with self._saying.transaction():
                lock = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
                await self._saying.execute(lock, [f"callboard_{self.what}"])
                if not await self._is_made():  # by another process, meanwhile
                    await self._saying.execute(self.script.read_text())
        except errors.InsufficientPrivilege as error:
            remedy = f"Have somebody who may CREATE in the schema open {self.whose} once, or grant it."
            raise StorageError(
                self._where, f"has no tables for {self.what}, and we may not make them: {error} {remedy}"
            ) from error

    async def _is_made(self) -> bool:
        found = await self._saying.execute("SELECT to_regproc(%s) IS NOT NULL", [self.last])
        return bool((await found.fetchone())[0])

    async def _told(self) -> AsyncIterator[str]:
        """What is said on the channels."""
        with self._errors():
            async for notice in self._hearing.notifies():
                yield notice.payload

    async def close(self) -> None:
        """Let it go; raises nothing."""
        for one in (self._saying, self._hearing):
            if one is not None:
                with suppress(psycopg.Error, OSError):
                    await one.close()

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except _NEVER as error:
            raise StorageError(self._where, f"refuses us: {error}") from error
        except _NOT_NOW as error:
            raise AwayError(str(error) or type(error).__name__) from error
        except psycopg.Error as error:
            raise StorageError(self._where, f"cannot keep {self.what}: {error}") from error
