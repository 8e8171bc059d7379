"""Base of `RedisDocuments` and `PostgresDocuments`: checked options, and the protocol of a store of documents."""

import time
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar, get_args

from callboard.extend import Away, Document, Done, Listener, Rule
from callboard_actors._server._store import ServerStore, check_seconds
from callboard_actors._server.documents._changes import PendingChange
from callboard_actors._server.documents._client import DocumentOptions, DocumentsClient, WhileAway
from callboard_actors._server.documents._transport import DocumentsTransport

_SMALLEST: Final = 64 * 1024
_LARGEST: Final = 64 * 1024 * 1024
"""Range of the size limit of a document, in bytes; servers copy a document several times."""

T = TypeVar("T")


class DocumentStore(ServerStore[DocumentsClient]):
    """Store of shared documents, with one client in each process that uses it.

    Args:
        whose: name of the user's class, for errors.
        where: address of the server, without a password.
        line: makes a connection to the server.
        lease: seconds without a heartbeat after which a process counts as dead.
        away: policy for calls during an outage.
        patience: seconds that a caller waits for the server.
        largest: size limit of a document, in bytes.
    """

    def __init__(
        self,
        whose: str,
        where: str,
        line: Callable[[], DocumentsTransport],
        *,
        lease: float,
        away: WhileAway,
        patience: float,
        largest: int,
    ) -> None:
        check_seconds(whose, [("lease", lease, 0.1), ("patience", patience, 0.01)])
        if away not in get_args(WhileAway):
            raise ValueError(f"{whose}(away=...) is one of {get_args(WhileAway)}, got {away!r}")
        check_largest(whose, largest)
        self._largest = largest
        self._line = line
        self._terms = DocumentOptions(where=where, lease=lease, away=away, patience=patience)
        # Weak: a listener, such as a circuit breaker, ends with its owner. Shared with the client, which reads it.
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        super().__init__(whose, where)

    def _new_client(self) -> DocumentsClient:
        return DocumentsClient(self._line, self._terms, self._listeners)

    def __getstate__(self) -> dict[str, Any]:
        """Return the options only: a copy begins without the listeners of this store."""
        return {name: value for name, value in super().__getstate__().items() if name != "_listeners"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_listeners": weakref.WeakSet()})

    @property
    def lease(self) -> float:
        """Seconds without a heartbeat after which a process counts as dead."""
        return self._terms.lease

    @property
    def largest(self) -> int:
        """Size limit of a document, in bytes."""
        return self._largest

    def change(
        self,
        document: Document,
        rule: Rule[T],
        on_answer: Callable[[Done[T] | Away | Exception], object] | None = None,
        /,
    ) -> None:
        """Apply a rule to a document without waiting; may be called from any thread."""
        self._client().change(PendingChange(document, rule, on_answer))

    def tend(self, document: Document, rule: Rule[Any], /) -> Callable[[], object]:
        """Apply a rule at each heartbeat until the returned function is called."""
        return self._client().tend(document, rule)

    def mark(self, shelf: str, name: str, /) -> None:
        """Set a mark without waiting; may be called from any thread."""
        self._client().mark(Document(shelf, name))

    def listen(self, listener: Listener, /) -> None:
        """Notify a listener of changed documents as long as the listener lives."""
        self._listeners.add(listener)

    def clock(self) -> float:
        """Return the server's time in seconds, as far as this process knows it."""
        return time.monotonic() + self._client().ahead


def check_largest(whose: str, largest: object) -> None:
    """Raise ValueError for a value that is not an allowed size limit of a document."""
    if isinstance(largest, bool) or not isinstance(largest, int) or not _SMALLEST <= largest <= _LARGEST:
        raise ValueError(f"{whose}(largest=...) is {_SMALLEST:,} to {_LARGEST:,} bytes, got {largest!r}")
