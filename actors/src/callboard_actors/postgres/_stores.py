"""Stores in PostgreSQL that many processes share: `PostgresLimits`, `PostgresDocuments` and `PostgresFleet`."""

from callboard_actors._server._documents import DocumentStore
from callboard_actors._server._store import ServerStore
from callboard_actors._server.fleet._member import FleetStore
from callboard_actors._server.limits._store import LimitStore


class _OnPostgres(ServerStore):
    server = "PostgreSQL"
    schemes = ("postgresql", "postgres")
    examples = "'postgresql://user:password@localhost:5432/app'"
    package, extra = "psycopg", "postgres"
    needs_host = False  # the driver has a default
    transports = "callboard_actors.postgres._transports"


class PostgresLimits(_OnPostgres, LimitStore):
    """Store of limits in PostgreSQL, for applications with a database and no Redis.

    The first process creates tables and functions named `callboard_limits_...`, in the first schema of the search path;
    it needs the right to. The tables are unlogged: nothing in them has to survive a crash.
    Other options and errors are those of `callboard_actors.redis.RedisLimits`.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
    """

    transport = "PostgresLimitsTransport"


class PostgresDocuments(_OnPostgres, DocumentStore):
    """Store of open circuit breakers and cached results in PostgreSQL, for applications with a database and no Redis.

    The first process creates a table and functions named `callboard_documents...`, in the first schema of the search
    path; it needs the right to. The table is unlogged: nothing in it has to survive a crash.
    Other options and errors are those of `callboard_actors.redis.RedisDocuments`.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
    """

    transport = "PostgresDocumentsTransport"


class PostgresFleet(_OnPostgres, FleetStore):
    """Fleet of processes that share one PostgreSQL database, for applications that have no Redis.

    The first process creates tables and functions named `callboard_fleet_...`, in the first schema of the search path;
    it needs the right to. Other options and errors are those of `callboard_actors.redis.RedisFleet`.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
    """

    transport = "PostgresFleetTransport"
