"""`PostgresFleet`: one owner for each key among many processes, kept in PostgreSQL."""

from functools import partial

from callboard_actors._server.fleet._store import FleetStore
from callboard_actors.postgres._where import checked


class PostgresFleet(FleetStore):
    """Fleet of processes that share one database, as `RedisFleet` does with a Redis server.

    The first process creates tables and functions named `callboard_fleet_...`, in the first schema of the search path;
    it needs the right to.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
        secret: text or bytes shared by all processes of the fleet; by default the environment's CALLBOARD_FLEET_SECRET.
        prefix: of the fleet, to keep applications apart.
        lease: seconds without a heartbeat after which a process counts as dead; the same in all processes.
        patience: seconds that asks wait in an outage before a `StorageError`; `None` for their whole budget.

    Raises:
        ImportError: if the extra `postgres` is not installed.
        ValueError: if an option is out of range, the secret is missing or short, or the URL is not one of PostgreSQL.
        TypeError: if an option has the wrong type.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes | None = None,
        prefix: str = "callboard-fleet",
        lease: float = 15.0,
        patience: float | None = 30.0,
    ) -> None:
        where = checked("PostgresFleet", url, prefix)
        from callboard_actors.postgres._fleet_line import PostgresFleetLine

        line = partial(PostgresFleetLine, url, where, prefix)
        super().__init__("PostgresFleet", where, line, prefix=prefix, secret=secret, lease=lease, patience=patience)
