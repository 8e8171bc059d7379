"""`RedisDocuments`: what many processes know together, kept in Redis."""

from functools import partial

from callboard_actors._documents._desk import WhileAway
from callboard_actors._documents._store import DocumentStore
from callboard_actors.redis._where import checked


class RedisDocuments(DocumentStore):
    """Keeps circuits and results in Redis, for all processes that ask the same server.

    For `callboard.middleware.CircuitBreaker(shared=...)` and `Cache(shared=...)`; one object may serve any number of
    them. Only the clock of the server counts. Documents are JSON, and their names digests: neither arguments nor keys
    are stored. What others have written under these names counts as nothing, and is overwritten.

    Args:
        url: of the server: "redis://localhost:6379/0", "rediss://..." with TLS, "unix:///path/to/socket".
        prefix: of all keys and channels, to keep applications apart.
        lease: seconds without a word after which a process counts as dead: then somebody else finds out what it was
            about to, or tries the tool in its place.
        away: while the server cannot be reached, each process goes on by itself ("local"), or calls are refused
            ("refuse").
        patience: seconds for which a call waits for the server, before it does that.
        largest: bytes that a document may have; larger results stay in their process.

    Raises:
        ImportError: without the extra `redis`.
        ValueError: for an option out of range, and a URL that is none of Redis.
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
        where = checked("RedisDocuments", url, prefix)
        from callboard_actors.redis._documents_line import RedisDocumentLine

        line = partial(RedisDocumentLine, url, where, prefix, largest)
        super().__init__("RedisDocuments", where, line, lease=lease, away=away, patience=patience, largest=largest)
