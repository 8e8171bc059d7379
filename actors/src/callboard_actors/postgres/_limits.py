"""`PostgresLimits`: limits that many processes share, kept in PostgreSQL."""

from functools import partial

from callboard_actors._places._share import Away
from callboard_actors._places._store import LimitStore
from callboard_actors.postgres._where import checked


class PostgresLimits(LimitStore):
    """Keeps limits in PostgreSQL, as `RedisLimits` does in Redis; for those who have a database and no Redis.

    The first process makes tables and functions, named `callboard_limits_...`, in the schema that comes first in the
    search path; it needs the right to. The tables are unlogged: nothing in them has to outlive a crash.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
        name: makes all limits that are given this object one limit, in all processes. Without it, each tool and each
            node has one of its own, by its name.
        prefix: of all limits, to keep applications apart.
        lease: seconds without a word after which a process counts as dead.
        away: while the server cannot be reached, calls "wait", for as long as their budgets allow; or they are
            refused ("refuse"); or each process goes on with its share ("local").
        patience: seconds that the server may be away before calls are refused, or begin by their share.
        processes: how many share the limit, with `away="local"`.

    Raises:
        ImportError: without the extra `postgres`.
        ValueError: for an option out of range, and a URL that is none of PostgreSQL.
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
