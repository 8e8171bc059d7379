"""Stores in PostgreSQL that many processes share: `PostgresLimits`, `PostgresDocuments` and `PostgresFleet`."""

from collections.abc import Callable
from functools import partial

from callboard_actors._server._documents import DocumentStore, DocumentsTransport
from callboard_actors._server._store import ServerStore
from callboard_actors._server.fleet._client import FleetTransport
from callboard_actors._server.fleet._member import FleetStore
from callboard_actors._server.limits._gate import LimitsTransport
from callboard_actors._server.limits._store import LimitStore


class _OnPostgres(ServerStore):
    server = "PostgreSQL"
    schemes = ("postgresql", "postgres")
    examples = "'postgresql://user:password@localhost:5432/app'"
    package, extra = "psycopg", "postgres"
    needs_host = False  # the driver has a default

    def _check_driver(self, url: str) -> None:
        from callboard_actors.postgres._transports import check_url

        check_url(self._whose, url)


class PostgresLimits(_OnPostgres, LimitStore):
    """Store of limits in PostgreSQL, for applications with a database and no Redis.

    The first process creates tables and functions named `callboard_limits_...`, in the first schema of the search path;
    it needs the right to. The tables are unlogged: nothing in them has to survive a crash.
    Other options and errors are those of `callboard_actors.redis.RedisLimits`.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
    """

    def _line(self) -> Callable[[], LimitsTransport]:
        from callboard_actors.postgres._transports import PostgresLimitsTransport

        return partial(PostgresLimitsTransport, self._url, self._where, self._prefix)


class PostgresDocuments(_OnPostgres, DocumentStore):
    """Store of open circuit breakers and cached results in PostgreSQL, for applications with a database and no Redis.

    The first process creates a table and functions named `callboard_documents...`, in the first schema of the search
    path; it needs the right to. The table is unlogged: nothing in it has to survive a crash.
    Other options and errors are those of `callboard_actors.redis.RedisDocuments`.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
    """

    def _line(self) -> Callable[[], DocumentsTransport]:
        from callboard_actors.postgres._transports import PostgresDocumentsTransport

        return partial(PostgresDocumentsTransport, self._url, self._where, self._prefix, self.largest)


class PostgresFleet(_OnPostgres, FleetStore):
    """Fleet of processes that share one PostgreSQL database, for applications that have no Redis.

    The first process creates tables and functions named `callboard_fleet_...`, in the first schema of the search path;
    it needs the right to. Other options and errors are those of `callboard_actors.redis.RedisFleet`.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
    """

    def _line(self) -> Callable[[], FleetTransport]:
        from callboard_actors.postgres._transports import PostgresFleetTransport

        return partial(PostgresFleetTransport, self._url, self._where, self._prefix, self._common)
