"""Protocol of a server of documents. The server compares versions, and decides nothing else."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from callboard.extend import Document, Written
from callboard_actors._server._client import Connection


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """Document as the server has it.

    Args:
        version: of the document; "" for none.
        text: of the document; `None` if it does not exist, is too large, or was not written by this package.
        left: seconds until it expires.
        marks: numbers of the requested marks.
        now: the server's time, in seconds.
    """

    version: str
    text: str | None
    left: float
    marks: tuple[int, ...]
    now: float


@dataclass(frozen=True, slots=True)
class Swap:
    """New text for a document, to be written only if its version is still the one that was read."""

    document: Document
    version: str
    written: Written

    @property
    def lives(self) -> int:
        """Milliseconds until the document expires, at least 1; 0 for never."""
        seconds = self.written.lives
        return 0 if seconds == float("inf") else max(1, round(seconds * 1000))


class DocumentsTransport(Connection, Protocol):
    """Connection of one process to a server of documents.

    All operations raise `AwayError` if the server cannot be reached, and `StorageError` if it refuses. After an
    `AwayError` from `write` or `mark`, the change may or may not have arrived.
    """

    async def read(self, documents: Sequence[Document]) -> Sequence[StoredDocument]:
        """Read documents and their marks; missing marks are created."""
        ...

    async def write(self, swaps: Sequence[Swap]) -> Sequence[bool]:
        """Write documents that have not changed since they were read; return for each whether it was written."""
        ...

    async def mark(self, documents: Sequence[Document]) -> None:
        """Set marks at the server, which tells every process of them."""
        ...

    async def now(self) -> float:
        """Return the server's time, in seconds."""
        ...

    def heard(self) -> AsyncIterator[Document]:
        """Yield the documents and marks of which the server notifies this process."""
        ...
