"""Two connections to PostgreSQL: one has functions called, the other hears what this process is told."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, suppress
from importlib.resources.abc import Traversable
from typing import Any

import psycopg
from psycopg import sql

from callboard_actors.postgres._server import PostgresServer


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
        self._server = PostgresServer(self.whose, self.what, url, where)
        self._prefix = prefix
        self._client = ""
        self._saying: Any = None
        self._hearing: Any = None

    async def _open(self, client: str, *channels: str) -> None:
        """Open both connections, make what is missing in the database, and listen on these channels."""
        self._client = client
        self._saying = await self._server.connect()
        await self._server.make(self._saying, self.script, self.last)
        self._hearing = await self._server.connect()
        for channel in channels:
            await self._hearing.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    async def _told(self) -> AsyncIterator[str]:
        """What is said on the channels."""
        with self._errors():
            async for notice in self._hearing.notifies():
                yield notice.payload

    async def close(self) -> None:
        """Give both connections up, in whatever state they are; raises nothing."""
        for one in (self._saying, self._hearing):
            if one is not None:
                with suppress(psycopg.Error, OSError):
                    await one.close()

    def _errors(self) -> AbstractContextManager[None]:
        return self._server.errors()
