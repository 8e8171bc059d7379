"""Stores in PostgreSQL that many processes share: `PostgresLimits` and `PostgresFleet`."""

from callboard_actors._server._client import ServerStore
from callboard_actors._server._limits import LimitStore
from callboard_actors._server.fleet._member import FleetStore


class _OnPostgres(ServerStore):
    server = "PostgreSQL"
    schemes = ("postgresql", "postgres")
    example_urls = "'postgresql://user:password@localhost:5432/app'"
    package, extra = "psycopg", "postgres"
    needs_host = False  # the driver has a default
    transport_module = "callboard_actors.postgres._transports"


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

    Raises the same errors as `RedisLimits`.
    """

    transport_class = "PostgresLimitsTransport"


class PostgresFleet(_OnPostgres, FleetStore):
    """Fleet of processes that share one PostgreSQL database: each key has one actor, which lives in one of them.

    The first asker owns the key until its actor goes or its process ends. Asks of other processes, and their replies,
    go through the database, pickled and signed with the secret. A process without a heartbeat for `lease` seconds
    counts as dead. The next asker then gets the key, with a higher fencing token (`callboard.fencing_token()`). A
    process that cannot reach the database ends its actors earlier, from three fifths of the lease on.

    The first process creates tables and functions named `callboard_fleet_...`, in the first schema of the search path;
    it needs the right to.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
        secret: text or bytes shared by all processes of the fleet; by default the environment's CALLBOARD_FLEET_SECRET.
        prefix: of the keys in the tables, to keep applications apart.
        lease: seconds without a heartbeat after which a process counts as dead; the same in all processes.
        patience: seconds that asks wait in an outage before a `StorageError`; `None` for their whole budget.

    Raises the same errors as `callboard_actors.redis.RedisLimits`, and `ValueError` if the secret is missing or short.
    """

    transport_class = "PostgresFleetTransport"
