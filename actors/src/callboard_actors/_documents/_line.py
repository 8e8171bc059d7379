"""Protocol of a server of documents. The server compares versions, and decides nothing else."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from callboard.documents import Document, Written
from callboard_actors._clerk import Connection


@dataclass(frozen=True, slots=True)
class Shelved:
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


class DocumentLine(Connection, Protocol):
    """Connection of one process to a server of documents."""

    async def read(self, documents: Sequence[Document]) -> Sequence[Shelved]:
        """Read documents and their marks; missing marks are created.

        Raises:
            AwayError: if the server cannot be reached.
            StorageError: if the server refuses.
        """
        ...

    async def write(self, swaps: Sequence[Swap]) -> Sequence[bool]:
        """Write documents; return for each whether it was written. A document that has changed since its read is not.

        Raises:
            AwayError: if the server cannot be reached; the write may or may not have arrived.
            StorageError: if the server refuses.
        """
        ...

    async def mark(self, documents: Sequence[Document]) -> None:
        """Set marks at the server, which tells every process of them.

        Raises:
            AwayError: if the server cannot be reached; the marks may or may not have been set.
            StorageError: if the server refuses.
        """
        ...

    async def now(self) -> float:
        """Return the server's time, in seconds.

        Raises:
            AwayError: if the server cannot be reached.
            StorageError: if the server refuses.
        """
        ...

    def heard(self) -> AsyncIterator[Document]:
        """Yield the documents and marks of which the server notifies this process."""
        ...
