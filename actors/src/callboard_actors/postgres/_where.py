"""Which database a URL of PostgreSQL is of."""

from callboard_actors._extras import needs
from callboard_actors._server_store import check_prefix, split_url


def checked(whose: str, url: str, prefix: object) -> str:
    """Check what every store on PostgreSQL is given; returns the URL without its password.

    Args:
        whose: the class that a user has given it to, for errors.
        url: of the database.
        prefix: of all that is kept there.

    Raises:
        ImportError: without the extra `postgres`.
        ValueError: for what is no URL of PostgreSQL, an option in it that cannot be had, and what is no prefix.
        TypeError: for a URL that is no text.
    """
    where = where_of(whose, url)
    check_prefix(whose, prefix)
    needs(f"{whose}(...)", "psycopg", extra="postgres")
    from callboard_actors.postgres._server import check_url

    check_url(whose, url)
    return where


def where_of(whose: str, url: object) -> str:
    """A URL without its password.

    Args:
        whose: the class that a user has given it to, for errors.
        url: of the database.

    Raises:
        ValueError: for what is no URL of PostgreSQL.
        TypeError: for what is no text.
    """
    remedy = "give it one such as 'postgresql://user:password@localhost:5432/app'"
    parts = split_url(whose, url, remedy)
    if parts.scheme not in ("postgresql", "postgres"):
        shown = f"{parts.scheme}://..." if parts.scheme else parts.path
        raise ValueError(f"{whose}({shown!r}) is no URL of PostgreSQL; {remedy}")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
