"""Two connections to PostgreSQL: one calls functions, the other receives notifications."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, suppress
from importlib.resources.abc import Traversable
from typing import Any

import psycopg
from psycopg import sql

from callboard_actors.postgres._server import PostgresServer


class PostgresConnection:
    """Two connections of one process to a server.

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
