"""Stores in PostgreSQL that many processes share: `PostgresLimits` and `PostgresFleet`."""

from callboard_actors._server._client import ServerStore
from callboard_actors._server._limits import LimitStore
from callboard_actors._server.fleet._member import FleetStore


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

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
        name: as for `callboard_actors.redis.RedisLimits`.
        prefix: as for `callboard_actors.redis.RedisLimits`.
        lease: as for `callboard_actors.redis.RedisLimits`, in seconds.
        away: as for `callboard_actors.redis.RedisLimits`.
        patience: as for `callboard_actors.redis.RedisLimits`, in seconds.
        processes: as for `callboard_actors.redis.RedisLimits`.

    Raises the same errors as `RedisLimits`.
    """

    transport = "PostgresLimitsTransport"


class PostgresFleet(_OnPostgres, FleetStore):
    """Fleet of processes that share one PostgreSQL database, for applications that have no Redis.

    The first process creates tables and functions named `callboard_fleet_...`, in the first schema of the search path;
    it needs the right to.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
        secret: as for `callboard_actors.redis.RedisFleet`.
        prefix: as for `callboard_actors.redis.RedisFleet`.
        lease: as for `callboard_actors.redis.RedisFleet`, in seconds.
        patience: as for `callboard_actors.redis.RedisFleet`, in seconds.

    Raises the same errors as `RedisFleet`.
    """

    transport = "PostgresFleetTransport"
