"""Which server a URL of Redis is of."""

from callboard_actors._server_store import split_url


def where_of(whose: str, url: object) -> str:
    """A URL without its password.

    Args:
        whose: the class that a user has given it to, for errors.
        url: of the server.

    Raises:
        ValueError: for what is no URL of Redis.
        TypeError: for what is no text.
    """
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
