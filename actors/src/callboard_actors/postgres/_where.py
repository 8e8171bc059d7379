"""Checks of a PostgreSQL URL."""

from callboard_actors._server._store import check_prefix, split_url
from callboard_actors._util._extras import needs


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
