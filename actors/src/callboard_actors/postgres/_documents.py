"""`PostgresDocuments`: circuits and results shared by many processes, kept in PostgreSQL."""

from functools import partial

from callboard_actors._server.documents._desk import WhileAway
from callboard_actors._server.documents._store import DocumentStore
from callboard_actors.postgres._where import checked


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
        from callboard_actors.postgres._documents_line import PostgresDocumentLine

        line = partial(PostgresDocumentLine, url, where, prefix, largest)
        super().__init__("PostgresDocuments", where, line, lease=lease, away=away, patience=patience, largest=largest)
