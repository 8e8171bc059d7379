"""Choice of the backend for a database URL."""

from pathlib import Path
from typing import TYPE_CHECKING

from callboard_actors.sql._backend import Backend

if TYPE_CHECKING:
    import sqlalchemy

LEAST_MEMORY = 16 * 1024**2
"""Bytes that SQLite needs for a few connections with values of the largest size."""
_REMEDY = "give it one such as 'sqlite:///shop.db' or 'postgresql://reader@localhost/shop'"


def parsed(whose: str, url: object) -> "sqlalchemy.URL":
    """Parse a database URL; raise ValueError or TypeError for any other URL, and ImportError without the driver."""
    try:
        import psycopg
        import sqlalchemy
        from sqlalchemy.exc import ArgumentError
    except ModuleNotFoundError as error:
        raise ImportError(f"{whose} needs {error.name}: pip install 'callboard-actors[sql]'") from error
    if not isinstance(url, str):
        raise TypeError(f"{whose}(url) is a text, got {type(url).__name__}; {_REMEDY}")
    del psycopg
    try:
        found = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(f"{whose}(url) cannot be read; {_REMEDY}") from None  # there may be a password in it
    kind = found.drivername.partition("+")[0]
    if kind not in ("sqlite", "postgresql", "postgres"):
        raise ValueError(f"{whose}('{found.drivername}://...') is for SQLite and PostgreSQL; {_REMEDY}")
    if kind == "sqlite" and (found.database in (None, "", ":memory:") or found.query):
        raise ValueError(f"{whose}({found.render_as_string()!r}) is no file, and nobody else could see it; {_REMEDY}")
    return found


def backend_of(url: "sqlalchemy.URL", connections: int, memory: int | None, *, writes: bool) -> Backend:
    """Return the backend for a database; it is not opened yet."""
    if url.drivername.startswith("sqlite"):
        from callboard_actors.sql._sqlite import SqliteBackend

        assert url.database is not None
        return SqliteBackend(Path(url.database), connections, memory, writes=writes)
    from callboard_actors.sql._postgres import PostgresBackend

    return PostgresBackend(url, connections)
