"""Connections to PostgreSQL for documents: functions read, compare and write them, and channels carry notifications."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from typing import Any

from callboard.extend import EVERYBODY, Document
from callboard_actors._server.documents._transport import StoredDocument, Swap
from callboard_actors.postgres._server import PostgresConnection

_PATIENCE = 2.0
"""Seconds for an answer."""
_CHANNEL = "callboard_told_"


class PostgresDocumentsTransport(PostgresConnection):
    """Two connections of one process to a server of documents.

    Args:
        url: of the database.
        where: the same, without a password.
        prefix: of all shelves.
        largest: size limit in bytes; the text of a larger document is not read.
    """

    what = "documents"
    whose = "PostgresDocuments"
    script = files("callboard_actors.postgres").joinpath("_documents.sql")
    last = "callboard_documents_mark_1"  # the last function of the script

    def __init__(self, url: str, where: str, prefix: str, largest: int) -> None:
        super().__init__(url, where, prefix)
        self._largest = largest

    async def open(self, client: str) -> None:
        """Connect, create missing tables and functions, and listen for changes of documents."""
        with self._errors():
            await self._open(client, _channel(EVERYBODY), _channel(client))

    async def read(self, documents: Sequence[Document]) -> Sequence[StoredDocument]:
        """Read documents and their marks; see `DocumentsTransport`."""
        # Creating marks locks rows: in one order for all processes, so that two of them never deadlock.
        order = sorted(range(len(documents)), key=lambda at: (documents[at].shelf, documents[at].name))
        wanted = [[self._shelf(one), one.name, one.marks] for one in (documents[at] for at in order)]
        found = await self._call("SELECT callboard_documents_read_1(%s, %s)", json.dumps(wanted), self._largest)
        return [_shelved(one) for _, one in sorted(zip(order, found, strict=True))]

    async def write(self, swaps: Sequence[Swap]) -> Sequence[bool]:
        """Write documents that have not changed since they were read; see `DocumentsTransport`."""
        # The function locks rows in this order, the same in all processes, so that two of them never deadlock.
        order = sorted(range(len(swaps)), key=lambda at: (swaps[at].document.shelf, swaps[at].document.name))
        said = json.dumps([self._written(swaps[at]) for at in order])
        found = await self._call("SELECT callboard_documents_write_1(%s)", said)
        return [done for _, done in sorted(zip(order, found, strict=True))]

    async def mark(self, documents: Sequence[Document]) -> None:
        """Set marks, and notify all processes; see `DocumentsTransport`."""
        for one in documents:
            step = "SELECT callboard_documents_mark_1(%s, %s, %s, %s)"
            await self._call(step, self._shelf(one), one.name, _channel(EVERYBODY), self._said_of(one))

    async def now(self) -> float:
        """Return the server's time, in seconds; see `DocumentsTransport`."""
        return float(await self._call("SELECT extract(epoch FROM clock_timestamp())::float8"))

    async def heard(self) -> AsyncIterator[Document]:
        """Yield the documents and marks of which the server notifies this process."""
        async for said in self._told():
            shelf, _, name = said.partition(" ")
            # The channel for all processes carries the notifications of every prefix in this database.
            if shelf.startswith(f"{self._prefix}:"):
                yield Document(shelf.removeprefix(f"{self._prefix}:"), name)

    async def _call(self, step: str, *arguments: object) -> Any:
        with self._errors():
            # A timeout becomes `AwayError`, and the connection is closed with whatever it was doing.
            async with asyncio.timeout(_PATIENCE):
                cursor = await self._saying.execute(step, arguments, prepare=True)
                [found] = await cursor.fetchone()
        return found

    def _written(self, swap: Swap) -> dict[str, object]:
        document, written = swap.document, swap.written
        return {
            "shelf": self._shelf(document),
            "name": document.name,
            "version": swap.version or None,
            "body": written.text,
            "lives": swap.lives or None,
            "most": written.most,
            "tell": [_channel(one) for one in sorted(written.tell)],
            "said": self._said_of(document),
        }

    def _shelf(self, document: Document) -> str:
        return f"{self._prefix}:{document.shelf}"

    def _said_of(self, document: Document) -> str:
        return f"{self._shelf(document)} {document.name}"


def _channel(process: str) -> str:
    return _CHANNEL + ("all" if process == EVERYBODY else process)


def _shelved(found: list[Any]) -> StoredDocument:
    now, version, left, text, marks = found
    return StoredDocument(
        version="" if version is None else str(version),
        text=text,
        left=float("inf") if left is None else left / 1e6,
        marks=tuple(marks),
        now=now / 1e6,
    )
