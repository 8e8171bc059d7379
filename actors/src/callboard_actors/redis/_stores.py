"""Stores in Redis that many processes share: `RedisLimits`."""

from callboard_actors._server._limits import LimitStore


class RedisLimits(LimitStore):
    """Store of limits in Redis, for all processes that use the same server.

    Calls get their permits in the order of arrival; with `Limit(tenant=...)` tenants take turns. Only the clock of the
    server counts. A process without a heartbeat for `lease` seconds counts as dead: its permits go to other calls, with
    higher fencing tokens (`callboard.fencing_token()`). A server that has just started gives no permit for a lease, or
    for the window of the rate if that is longer, so that earlier holders can report theirs.

    Args:
        url: of the server: "redis://localhost:6379/0", "rediss://..." with TLS, "unix:///path/to/socket".
        name: makes all limits with this object one limit, in all processes; by default one for each tool and each node.
        prefix: of all keys and channels, to keep applications apart.
        lease: seconds without a heartbeat after which a process counts as dead.
        away: while the server cannot be reached, calls "wait" within their budgets, or are refused ("refuse").
        patience: seconds of outage before calls are refused.

    Raises:
        ImportError: if the extra `redis` is not installed.
        ValueError: if an option is out of range, or the URL is not one of Redis.
        TypeError: if an option has the wrong type.
    """

    server = "Redis"
    schemes = ("redis", "rediss", "unix")
    example_urls = "'redis://localhost:6379/0', 'rediss://host' or 'unix:///run/redis.sock'"
    package = extra = "redis"
    transport_module = "callboard_actors.redis._transports"
    transport_class = "RedisLimitsTransport"
