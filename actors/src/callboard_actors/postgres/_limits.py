"""`PostgresLimits`: limits shared by many processes, kept in PostgreSQL."""

from functools import partial

from callboard_actors._server.limits._share import Away
from callboard_actors._server.limits._store import LimitStore
from callboard_actors.postgres._where import checked


class PostgresLimits(LimitStore):
    """Store of limits in PostgreSQL, as `RedisLimits` is in Redis, for applications that have a database and no Redis.

    The first process creates tables and functions named `callboard_limits_...`, in the first schema of the search path;
    it needs the right to. The tables are unlogged: nothing in them has to survive a crash.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
        name: makes all limits with this object one limit, in all processes; by default one for each tool and each node.
        prefix: of all limits, to keep applications apart.
        lease: seconds without a heartbeat after which a process counts as dead.
        away: while the server cannot be reached, calls "wait" within their budgets, are refused ("refuse"), or use this
            process's share ("local").
        patience: seconds of outage before calls are refused, or use the share.
        processes: number of processes that share the limit, with `away="local"`.

    Raises:
        ImportError: if the extra `postgres` is not installed.
        ValueError: if an option is out of range, or the URL is not one of PostgreSQL.
        TypeError: if an option has the wrong type.
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
        where = checked("PostgresLimits", url, prefix)
        from callboard_actors.postgres._limits_line import PostgresLimitLine

        line = partial(PostgresLimitLine, url, where, prefix)
        super().__init__(
            "PostgresLimits",
            where,
            line,
            name=name,
            lease=lease,
            away=away,
            patience=patience,
            processes=processes,
        )
