"""`RedisDocuments`: circuits and results shared by many processes, kept in Redis."""

from functools import partial

from callboard_actors._server.documents._desk import WhileAway
from callboard_actors._server.documents._store import DocumentStore
from callboard_actors.redis._where import checked


class RedisDocuments(DocumentStore):
    """Store of circuits and results in Redis, for all processes that use the same server.

    For `callboard.middleware.CircuitBreaker(shared=...)` and `Cache(shared=...)`; one object may serve several of them.
    Only the server's clock counts. Documents are JSON under digests as names: neither arguments nor keys are stored.
    Anything else that was written under these names is ignored and overwritten.

    Args:
        url: of the server: "redis://localhost:6379/0", "rediss://..." with TLS, "unix:///path/to/socket".
        prefix: of all keys and channels, to keep applications apart.
        lease: seconds without a heartbeat after which a process counts as dead. Another process then computes the
            result in its place, or probes the tool.
        away: "local" lets each process go on by itself while the server cannot be reached; "refuse" refuses calls.
        patience: seconds that a call waits for the server before `away` applies.
        largest: size limit of a document, in bytes; larger results stay in their process.

    Raises:
        ImportError: if the extra `redis` is not installed.
        ValueError: if an option is out of range, or the URL is not one of Redis.
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
        where = checked("RedisDocuments", url, prefix)
        from callboard_actors.redis._documents_line import RedisDocumentLine

        line = partial(RedisDocumentLine, url, where, prefix, largest)
        super().__init__("RedisDocuments", where, line, lease=lease, away=away, patience=patience, largest=largest)
