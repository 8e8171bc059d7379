"""Checks of a Redis URL."""

from callboard_actors._server._store import check_prefix, split_url
from callboard_actors._util._extras import needs


def checked(whose: str, url: str, prefix: object) -> str:
    """Check the URL and prefix of a store on Redis; return the URL without its password.

    Raises ImportError without the extra `redis`, ValueError for a bad URL or prefix, and TypeError for a URL that is
    no string.
    """
    where = where_of(whose, url)
    check_prefix(whose, prefix)
    needs(f"{whose}(...)", "redis", extra="redis")
    from callboard_actors.redis._server import check_options

    check_options(whose, url)
    return where


def where_of(whose: str, url: object) -> str:
    """Return a Redis URL without its password; raise ValueError or TypeError if it is not one."""
    remedy = "give it one such as 'redis://localhost:6379/0', 'rediss://host' or 'unix:///run/redis.sock'"
    parts = split_url(whose, url, remedy)
    if parts.scheme not in ("redis", "rediss", "unix") or not (parts.hostname or parts.path.strip("/")):
        raise ValueError(
            f"{whose}({parts.scheme + '://...' if parts.scheme else parts.path!r}) is no URL of Redis; {remedy}"
        )
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise ValueError(f"{whose}(url): databases of Redis are numbers, got {database!r}; {remedy}")
    host = "" if parts.hostname is None else parts.hostname + (f":{parts.port}" if parts.port else "")
    return f"{parts.scheme}://{host}{parts.path}"
