"""Connection to Redis for documents: a script reads, compares and writes them, and channels carry notifications."""

from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from typing import Any

from callboard.extend import EVERYBODY, Document
from callboard_actors._server.documents._transport import StoredDocument, Swap
from callboard_actors.redis._server import RedisConnection


class RedisDocumentsTransport(RedisConnection):
    """Connection of one process to a server of documents.

    Args:
        url: of the server.
        where: the same, without a password.
        prefix: of all keys and channels.
        largest: size limit in bytes; the text of a larger document is not read.
    """

    what = "documents"
    script = files("callboard_actors.redis").joinpath("_documents.lua")

    def __init__(self, url: str, where: str, prefix: str, largest: int) -> None:
        super().__init__(url, where, prefix)
        self._largest = largest

    async def open(self, client: str) -> None:
        """Connect, load the script, and subscribe to changes of documents."""
        with self._errors():
            await self._open(client, self._channel(EVERYBODY), self._channel(client))

    async def read(self, documents: Sequence[Document]) -> Sequence[StoredDocument]:
        """Read documents and their marks; see `DocumentsTransport`."""
        return [_shelved(found) for found in await self._run([self._reading(one) for one in documents])]

    async def write(self, swaps: Sequence[Swap]) -> Sequence[bool]:
        """Write documents that have not changed since they were read; see `DocumentsTransport`."""
        return [found == 1 for found in await self._run([self._writing(one) for one in swaps])]

    async def mark(self, documents: Sequence[Document]) -> None:
        """Set marks, and notify all processes; see `DocumentsTransport`."""
        told = self._channel(EVERYBODY)
        await self._run([[1, self._key(one.shelf, one.name), "mark", _said_of(one), told] for one in documents])

    async def now(self) -> float:
        """Return the server's time, in seconds; see `DocumentsTransport`."""
        with self._errors():
            seconds, micros = await self._redis.time()
        return float(seconds) + float(micros) / 1e6

    async def heard(self) -> AsyncIterator[Document]:
        """Yield the documents and marks of which the server notifies this process."""
        while True:
            # The names of shelves, such as `results-` and a digest, have no spaces.
            shelf, _, name = str(await self._told()).partition(" ")
            yield Document(shelf, name)

    def _reading(self, document: Document) -> list[object]:
        keys = [self._key(document.shelf, name) for name in (document.name, *document.marks)]
        return [len(keys), *keys, "read", self._largest]

    def _writing(self, swap: Swap) -> list[object]:
        document, written = swap.document, swap.written
        stem = self._key(document.shelf, "")
        keys = [stem + document.name, f"{self._prefix}:counted:{{{document.shelf}}}"]
        text = [int(written.text is not None), written.text or ""]
        most = -1 if written.most is None else written.most
        told = [self._channel(one) for one in sorted(written.tell)]
        numbers = [swap.lives, most]
        return [2, *keys, "write", swap.version, *text, *numbers, document.name, stem, _said_of(document), *told]

    def _key(self, shelf: str, name: str) -> str:
        # The braces put all keys of a shelf into one hash slot, as a script in a Redis cluster needs.
        return f"{self._prefix}:document:{{{shelf}}}:{name}"

    def _channel(self, process: str) -> str:
        return f"{self._prefix}:told:{process}"


def _said_of(document: Document) -> str:
    return f"{document.shelf} {document.name}"


def _shelved(found: list[Any]) -> StoredDocument:
    now, version, left, text, marks = found
    return StoredDocument(
        version=version,
        text=text,
        # PTTL is -1 for no expiry and -2 for no document.
        left=float("inf") if left < 0 else left / 1000,
        marks=tuple(map(int, marks)),
        now=int(now) / 1e6,
    )
