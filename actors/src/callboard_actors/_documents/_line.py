"""What is said to a server that keeps documents, and what it answers. The server compares, and decides nothing."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from callboard.documents import Document, Written
from callboard_actors._clerk import Connection


@dataclass(frozen=True, slots=True)
class Shelved:
    """A document as a server has it.

    Args:
        version: which one of it; "" for none.
        text: what it says; `None` if there is none, it is too large, or none that could have been written here.
        left: seconds that it still lives.
        marks: the numbers of the marks that were asked for.
        now: the time there, in seconds.
    """

    version: str
    text: str | None
    left: float
    marks: tuple[int, ...]
    now: float


@dataclass(frozen=True, slots=True)
class Swap:
    """A new text for a document, if it is still the one that was seen."""

    document: Document
    version: str
    written: Written

    @property
    def lives(self) -> int:
        """Milliseconds until it is gone, at least 1; 0 for no end."""
        seconds = self.written.lives
        return 0 if seconds == float("inf") else max(1, round(seconds * 1000))


class DocumentLine(Connection, Protocol):
    """A connection to a server that keeps documents, of one process."""

    async def read(self, documents: Sequence[Document]) -> Sequence[Shelved]:
        """How these are, and their marks, which are made if they are not there.

        Raises:
            AwayError: if the server cannot be reached.
            StorageError: if it refuses.
        """
        ...

    async def write(self, swaps: Sequence[Swap]) -> Sequence[bool]:
        """Which documents have become what was said; the others were not what was seen any more.

        Raises:
            AwayError: if the server cannot be reached; whether it has heard is unknown.
            StorageError: if it refuses.
        """
        ...

    async def mark(self, documents: Sequence[Document]) -> None:
        """Set marks at the server, which tells every process of them.

        Raises:
            AwayError: if the server cannot be reached; whether it has heard is unknown.
            StorageError: if it refuses.
        """
        ...

    async def now(self) -> float:
        """The time there, in seconds.

        Raises:
            AwayError: if the server cannot be reached.
            StorageError: if it refuses.
        """
        ...

    def heard(self) -> AsyncIterator[Document]:
        """Documents and marks that this process was told of."""
        ...
