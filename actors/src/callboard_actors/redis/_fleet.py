"""`RedisFleet`: one owner for each key among many processes, kept in Redis."""

from functools import partial

from callboard_actors._fleet._store import FleetStore
from callboard_actors.redis._where import checked


class RedisFleet(FleetStore):
    """Has actors live once for each key, in one of all processes that ask the same server.

    Who asks first owns the key, until its actor goes or its process ends; asks of other processes are carried to it,
    and their replies back, through the server. What is sent is pickled, and signed with the secret. A process that
    gives no sign of life for `lease` seconds counts as dead, and whoever asks next has the key, with a higher fencing
    token (`callboard.fencing_token()`). One that cannot reach the server ends its actors before that, beginning after
    three fifths of the lease. A server that has just started gives no key away for a lease.

    Args:
        url: of the server: "redis://localhost:6379/0", "rediss://..." with TLS, "unix:///path/to/socket".
        secret: a text or bytes that all processes of the fleet share, and nobody else has; by default that in the
            environment, as CALLBOARD_FLEET_SECRET.
        prefix: of all keys, to keep applications apart.
        lease: seconds without a word after which a process counts as dead; the same in all processes.
        patience: seconds that asks wait for a server that is away, before they fail with a `StorageError`; `None` for
            as long as their own budgets allow.

    Raises:
        ImportError: without the extra `redis`.
        ValueError: for an option out of range, no secret or one that is too short, and a URL that is none of Redis.
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
        where = checked("RedisFleet", url, prefix)
        from callboard_actors.redis._fleet_line import RedisFleetLine

        line = partial(RedisFleetLine, url, where, prefix)
        super().__init__("RedisFleet", where, line, prefix=prefix, secret=secret, lease=lease, patience=patience)
