"""`RedisFleet`: one owner for each key among many processes, kept in Redis."""

from functools import partial

from callboard_actors._server.fleet._store import FleetStore
from callboard_actors.redis._where import checked


class RedisFleet(FleetStore):
    """Fleet of processes that share one server: of each key, one actor lives, in one of the processes.

    The first asker owns the key until its actor goes or its process ends. Asks of other processes, and their replies,
    go through the server, pickled and signed with the secret. A process without a heartbeat for `lease` seconds counts
    as dead. The next asker then gets the key, with a higher fencing token (`callboard.fencing_token()`). A process that
    cannot reach the server ends its actors earlier, from three fifths of the lease on. A server that has just started
    gives no key away for a lease.

    Args:
        url: of the server: "redis://localhost:6379/0", "rediss://..." with TLS, "unix:///path/to/socket".
        secret: text or bytes shared by all processes of the fleet; by default the environment's CALLBOARD_FLEET_SECRET.
        prefix: of all keys, to keep applications apart.
        lease: seconds without a heartbeat after which a process counts as dead; the same in all processes.
        patience: seconds that asks wait in an outage before a `StorageError`; `None` for their whole budget.

    Raises:
        ImportError: if the extra `redis` is not installed.
        ValueError: if an option is out of range, the secret is missing or short, or the URL is not one of Redis.
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
        where = checked("RedisFleet", url, prefix)
        from callboard_actors.redis._fleet_line import RedisFleetLine

        line = partial(RedisFleetLine, url, where, prefix)
        super().__init__("RedisFleet", where, line, prefix=prefix, secret=secret, lease=lease, patience=patience)
