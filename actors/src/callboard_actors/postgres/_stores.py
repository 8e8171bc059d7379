"""Stores in PostgreSQL that many processes share: `PostgresLimits`, `PostgresDocuments` and `PostgresFleet`."""

from functools import partial

from callboard_actors._server._store import check_prefix, split_url
from callboard_actors._server.documents._client import WhileAway
from callboard_actors._server.documents._store import DocumentStore
from callboard_actors._server.fleet._store import FleetStore
from callboard_actors._server.limits._share import Away
from callboard_actors._server.limits._store import LimitStore
from callboard_actors._util._extras import needs


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
        from callboard_actors.postgres._limits_transport import PostgresLimitsTransport

        line = partial(PostgresLimitsTransport, url, where, prefix)
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


class PostgresDocuments(DocumentStore):
    """Store of circuits and results in PostgreSQL, as `RedisDocuments` is in Redis.

    The first process creates a table and functions named `callboard_documents...`, in the first schema of the search
    path; it needs the right to. The table is unlogged: nothing in it has to survive a crash.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
        prefix: of all documents, to keep applications apart.
        lease: seconds without a heartbeat after which a process counts as dead. Another process then computes the
            result in its place, or probes the tool.
        away: "local" lets each process go on by itself while the server cannot be reached; "refuse" refuses calls.
        patience: seconds that a call waits for the server before `away` applies.
        largest: size limit of a document, in bytes; larger results stay in their process.

    Raises:
        ImportError: if the extra `postgres` is not installed.
        ValueError: if an option is out of range, or the URL is not one of PostgreSQL.
        TypeError: if an option has the wrong type.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "callboard",
        lease: float = 10.0,
        away: WhileAway = "local",
        patience: float = 1.0,
        largest: int = 1024 * 1024,
    ) -> None:
        where = checked("PostgresDocuments", url, prefix)
        from callboard_actors.postgres._documents_transport import PostgresDocumentsTransport

        line = partial(PostgresDocumentsTransport, url, where, prefix, largest)
        super().__init__("PostgresDocuments", where, line, lease=lease, away=away, patience=patience, largest=largest)


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
        from callboard_actors.postgres._fleet_transport import PostgresFleetTransport

        line = partial(PostgresFleetTransport, url, where, prefix)
        super().__init__("PostgresFleet", where, line, prefix=prefix, secret=secret, lease=lease, patience=patience)


def checked(whose: str, url: str, prefix: object) -> str:
    """Check the URL and prefix of a store on PostgreSQL; return the URL without its password.

    Raises ImportError without the extra `postgres`, ValueError for a bad URL or prefix, and TypeError for a URL that is
    no string.
    """
    where = where_of(whose, url)
    check_prefix(whose, prefix)
    needs(f"{whose}(...)", "psycopg", extra="postgres")
    from callboard_actors.postgres._server import check_url

    check_url(whose, url)
    return where


def where_of(whose: str, url: object) -> str:
    """Return a PostgreSQL URL without its password; raise ValueError or TypeError if it is not one."""
    remedy = "give it one such as 'postgresql://user:password@localhost:5432/app'"
    parts = split_url(whose, url, remedy)
    if parts.scheme not in ("postgresql", "postgres"):
        shown = f"{parts.scheme}://..." if parts.scheme else parts.path
        raise ValueError(f"{whose}({shown!r}) is no URL of PostgreSQL; {remedy}")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
