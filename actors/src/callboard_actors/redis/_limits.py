"""`RedisLimits`: limits that many processes share, kept in Redis."""

from functools import partial

from callboard_actors._places._share import Away
from callboard_actors._places._store import LimitStore
from callboard_actors.redis._where import checked


class RedisLimits(LimitStore):
    """Keeps limits in Redis, for all processes that ask the same server.

    Places are had in the order of arrival; with `Limit(tenant=...)` tenants take turns. Only the clock of the server
    counts. A process that gives no sign of life for `lease` seconds counts as dead: its places are given to others,
    with higher fencing tokens (`callboard.fencing_token()`). A server that has just started gives no place for a
    lease, or the window of the rate if that is longer: who had one says so meanwhile.

    Args:
        url: of the server: "redis://localhost:6379/0", "rediss://..." with TLS, "unix:///path/to/socket".
        name: makes all limits that are given this object one limit, in all processes. Without it, each tool and each
            node has one of its own, by its name.
        prefix: of all keys and channels, to keep applications apart.
        lease: seconds without a word after which a process counts as dead.
        away: while the server cannot be reached, calls "wait", for as long as their budgets allow; or they are
            refused ("refuse"); or each process goes on with its share ("local").
        patience: seconds that the server may be away before calls are refused, or begin by their share.
        processes: how many share the limit, with `away="local"`.

    Raises:
        ImportError: without the extra `redis`.
        ValueError: for an option out of range, and a URL that is none of Redis.
        TypeError: for an option of the wrong kind.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        prefix: str = "callboard",
        lease: float = 10.0,
        away: Away = "wait",
        patience: float = 1.0,
        processes: int | None = None,
    ) -> None:
        where = checked("RedisLimits", url, prefix)
        from callboard_actors.redis._limits_line import RedisLimitLine

        line = partial(RedisLimitLine, url, where, prefix)
        super().__init__(
            "RedisLimits",
            where,
            line,
            name=name,
            lease=lease,
            away=away,
            patience=patience,
            processes=processes,
        )
