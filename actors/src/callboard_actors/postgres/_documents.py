"""`PostgresDocuments`: what many processes know together, kept in PostgreSQL."""

from functools import partial

from callboard_actors._documents._desk import WhileAway
from callboard_actors._documents._store import DocumentStore
from callboard_actors.postgres._where import checked


class PostgresDocuments(DocumentStore):
    """Keeps circuits and results in PostgreSQL, as `RedisDocuments` does in Redis.

    The first process makes a table and functions, named `callboard_documents...`, in the schema that comes first in
    the search path; it needs the right to. The table is unlogged: nothing in it has to outlive a crash.

    Args:
        url: of the database: "postgresql://user:password@host:5432/database".
        prefix: of all documents, to keep applications apart.
        lease: seconds without a word after which a process counts as dead: then somebody else finds out what it was
            about to, or tries the tool in its place.
        away: while the server cannot be reached, each process goes on by itself ("local"), or calls are refused
            ("refuse").
        patience: seconds for which a call waits for the server, before it does that.
        largest: bytes that a document may have; larger results stay in their process.

    Raises:
        ImportError: without the extra `postgres`.
        ValueError: for an option out of range, and a URL that is none of PostgreSQL.
        TypeError: for an option of the wrong kind.
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
        from callboard_actors.postgres._documents_line import PostgresDocumentLine

        line = partial(PostgresDocumentLine, url, where, prefix, largest)
        super().__init__("PostgresDocuments", where, line, lease=lease, away=away, patience=patience, largest=largest)
