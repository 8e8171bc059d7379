"""Which database a URL of PostgreSQL is of."""

from callboard_actors._server_store import split_url


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
