"""`PostgresFleet`: one owner for each key among many processes, kept in PostgreSQL."""

from functools import partial

from callboard_actors._fleet._store import FleetStore
from callboard_actors.postgres._where import checked


class PostgresFleet(FleetStore):
    """Has actors live once for each key, in PostgreSQL as `RedisFleet` does in Redis.

    The first process makes tables and functions, named `callboard_fleet_...`, in the schema that comes first in the
    search path; it needs the right to.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
        secret: a text or bytes that all processes of the fleet share, and nobody else has; by default that in the
            environment, as CALLBOARD_FLEET_SECRET.
        prefix: of the fleet, to keep applications apart.
        lease: seconds without a word after which a process counts as dead; the same in all processes.
        patience: seconds that asks wait for a server that is away, before they fail with a `StorageError`; `None` for
            as long as their own budgets allow.

    Raises:
        ImportError: without the extra `postgres`.
        ValueError: for an option out of range, no secret or one that is too short, and a URL that is none of
            PostgreSQL.
        TypeError: for an option of the wrong kind.
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
