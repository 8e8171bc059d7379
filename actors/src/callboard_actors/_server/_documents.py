"""Documents (circuit breakers, cached results) on a server: their store, background client and connection interface.

The client applies rules to documents in rounds of two round trips. A round first reads all documents with pending
changes, then writes the new texts. A document that another process changed in between is read and tried again.
The server compares versions, and decides nothing else.
"""

import asyncio
import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar, get_args

from callboard import StorageError
from callboard.extend import Away, Document, Done, Found, Rule, Written
from callboard_actors._server._client import AwayError, BackgroundClient, ClientStore, Connection, check_away
from callboard_actors._util._options import check_seconds

# The protocol of a server.


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """Document as read from the server, with the values of the marks (counters) that were requested with the document.

    Args:
        version: version of the document; "" if it does not exist.
        text: text of the document; `None` if it does not exist, is too large, or was not written by this package.
        left: seconds until the document expires.
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
    """New text for a document; it is written only if no other process has changed the document since the read."""

    document: Document
    version: str
    written: Written

    @property
    def lives(self) -> int:
        """Milliseconds until the document expires; 0 if it never expires."""
        seconds = self.written.lives
        return 0 if math.isinf(seconds) else max(1, round(seconds * 1000))


class DocumentsTransport(Connection, Protocol):
    """Connection of one process to a server that stores documents.

    All operations raise `AwayError` if the server cannot be reached, and `StorageError` if it refuses. After an
    `AwayError` from `write` or `mark`, the change may or may not have arrived. Documents come in the order of their
    names.
    """

    async def read(self, documents: Sequence[Document]) -> Sequence[StoredDocument]:
        """Read documents, and the counters (marks) that their rules use; create counters that do not exist."""
        ...

    async def write(self, swaps: Sequence[Swap]) -> Sequence[bool]:
        """Write each document that has not changed since it was read; return for each whether it was written."""
        ...

    async def mark(self, documents: Sequence[Document]) -> None:
        """Add one to each mark, a counter at the server; a later read of the mark shows the change."""
        ...


# Pending changes. They decide, and never wait; all of it runs in the client's thread.


@dataclass(slots=True, eq=False)
class PendingChange:
    """Requested change of a document: a rule (function that computes the new text), and a callback for the result."""

    document: Document
    rule: Rule[Any]
    on_answer: Callable[[Done[Any] | Away | Exception], object] | None
    # Set by the first answer: the outage timer and the server may both answer.
    is_over: bool = False

    def answer(self, answer: Done[Any] | Away | Exception) -> None:
        """Pass the answer to the waiting caller, if any; a second answer is dropped."""
        if not self.is_over:
            self.is_over = True
            if self.on_answer is not None:
                self.on_answer(answer)


class ChangeGroup:
    """All pending changes of one document, in the order of their requests."""

    def __init__(self, changes: Iterable[PendingChange]) -> None:
        self.changes = list(changes)
        first = self.changes[0].document
        marks = {mark: None for change in self.changes for mark in change.document.marks}
        self.document = Document(first.shelf, first.name, tuple(marks))
        self._says: list[tuple[PendingChange, Done[Any] | Exception]] = []

    def follow(self, stored: StoredDocument) -> Written | None:
        """Apply the rules (functions) one after the other; return the text to write, or `None` if nothing changes."""
        # Each rule sees only the marks that it has asked for.
        numbers = dict(zip(self.document.marks, stored.marks, strict=True))
        text, left, written = stored.text, stored.left, None
        # A repeated round starts over: answers from an outdated text must not be given.
        self._says = []
        for change in [one for one in self.changes if not one.is_over]:
            marks = tuple(numbers[mark] for mark in change.document.marks)
            try:
                new, says = change.rule(Found(text=text, left=left, marks=marks, now=stored.now))
            except Exception as error:  # a rule is foreign code: its error is its caller's answer, and the others go on
                self._says.append((change, error))
                continue
            self._says.append((change, Done(says)))
            if new is not None:
                # The next rule sees this result as if it had been read.
                text, left, written = new.text, new.lives, new
        # Deleting a document that does not exist is no change.
        is_change = written is not None and (written.text is not None or stored.version != "")
        return written if is_change else None

    def answer(self) -> None:
        """Report the result of each rule (function) to its caller; called when the new text, if any, is stored."""
        for change, says in self._says:
            change.answer(says)


def _group_by_document(changes: Iterable[PendingChange]) -> list[ChangeGroup]:
    """Group changes by document, sorted by name: all processes then lock documents on the server in the same order."""
    by_document: dict[tuple[str, str], list[PendingChange]] = defaultdict(list)
    for change in changes:
        by_document[change.document.shelf, change.document.name].append(change)
    # The same order in all processes, so that two of them never wait for each other's locks.
    return [ChangeGroup(found) for _, found in sorted(by_document.items())]


# The client.

_logger = logging.getLogger("callboard_actors.documents")
_GOING_ON = {"refuse": "calls are refused", "local": "each process goes on by itself"}

WhileAway = Literal["local", "refuse"]
"""Policy for calls during an outage."""

_AT_ONCE = 500
"""Largest number of changes that are processed together, with one read and one write."""
_MOST_KEPT = 10_000
"""Largest number of pending changes without a waiting caller that are kept for a server in an outage."""


class DocumentsClient(BackgroundClient[DocumentsTransport]):
    """Client of one process for documents on a server: makes the changes that callers in this process request."""

    def __init__(self, line: Callable[[], DocumentsTransport], where: str, *, patience: float, away: WhileAway) -> None:
        self.going_on = _GOING_ON[away]
        self._refuses = away == "refuse"
        # From here on: client's thread only. Other threads post functions, so no lock is needed.
        self._changes: deque[PendingChange] = deque()
        self._marks: dict[Document, None] = {}  # an ordered set: a mark set twice before it is sent is one mark
        # Last: the thread starts here, and uses the fields above.
        super().__init__(line, where, patience, _logger)

    def change(self, change: PendingChange) -> None:
        """Queue a rule (a function) to be applied to a document; may be called from any thread."""
        if not self.post(lambda: self._enter(change)):
            change.answer(self.closed())

    def mark(self, document: Document) -> None:
        """Queue an increase of a mark, a counter at the server; may be called from any thread."""
        self.post(lambda: self._marks.update({document: None}))

    def _enter(self, change: PendingChange) -> None:
        # No caller waits: the change can wait for the end of an outage.
        if change.on_answer is None:
            self._keep(change)
            return
        if self.is_away_for_long:
            self._tell_away(change)
            return
        self._changes.append(change)
        # Bounds the wait also while the server is reached, but slow.
        self.loop.call_later(self.patience, self._tell_away, change)

    def _keep(self, change: PendingChange) -> None:
        self._changes.append(change)
        # Only in an outage: while the server answers, the queue empties by itself.
        if len(self._changes) > _MOST_KEPT and self.is_away_for_long:
            lost = self._changes.popleft()
            _logger.warning("%s: %d changes wait; one is given up: %r", self.where, _MOST_KEPT, lost.document)

    def _tell_away(self, change: PendingChange) -> None:
        change.answer(Away(f"{self.where} cannot be reached", self._refuses))

    def has_work(self) -> bool:
        return True  # an outage ends only if the client tries to connect, and calls are not kept meanwhile

    def has_last_words(self) -> bool:
        return bool(self._marks) or any(not change.is_over for change in self._changes)

    async def listen(self, line: DocumentsTransport) -> None:
        # For ever: the server sends nothing by itself, and a broken connection is noticed by the next change.
        await asyncio.get_running_loop().create_future()

    async def say_what_is_due(self, line: DocumentsTransport) -> float:
        # Before the changes: a rule that reads its marks in this round sees those set here.
        if self._marks:
            await self._set_marks(line)
        if self._changes:
            await self._go(line)
        return self.loop.time() if self._changes or self._marks else math.inf

    async def _set_marks(self, line: DocumentsTransport) -> None:
        # Taken out before the await, so that marks set during it are kept for the next round.
        marks, self._marks = self._marks, {}
        try:
            await line.mark(list(marks))
        except BaseException:
            # A mark is a counter: setting one a second time only makes more results invalid.
            self._marks = {**marks, **self._marks}
            raise

    async def _go(self, line: DocumentsTransport) -> None:
        """Process queued changes with one read and one write; put changes that must be repeated back into the queue."""
        taken = [self._changes.popleft() for _ in range(min(_AT_ONCE, len(self._changes)))]
        undone = [one for one in taken if not one.is_over]
        try:
            undone = await self._round(line, _group_by_document(undone))
        finally:
            # Back to the front, in their order: later changes must not overtake. Also when this round is cancelled.
            self._changes.extendleft(reversed([one for one in undone if not one.is_over]))

    async def _round(self, line: DocumentsTransport, wanted: list[ChangeGroup]) -> list[PendingChange]:
        """Apply changes to documents; return the changes to repeat: another process has changed their documents."""
        found = await line.read([group.document for group in wanted])
        swaps: dict[ChangeGroup, Swap] = {}
        for group, stored in zip(wanted, found, strict=True):
            written = group.follow(stored)
            if written is None:
                # Nothing to write: the answer is true as of the read.
                group.answer()
            else:
                swaps[group] = Swap(group.document, stored.version, written)
        if not swaps:
            return []
        try:
            done = await line.write(list(swaps.values()))
        except AwayError:
            # The write may have arrived. Repeating a rule could count an event twice, so waiting callers are told of
            # the outage instead. Rules without a caller describe a final state, and may be repeated.
            for change in [one for group in swaps for one in group.changes if one.on_answer is not None]:
                self._tell_away(change)
            raise
        for group, is_done in zip(swaps, done, strict=True):
            # Answered only when written: another process may have been faster, and the rule must then see its text.
            if is_done:
                group.answer()
        return [one for group, is_done in zip(swaps, done, strict=True) if not is_done for one in group.changes]

    def look_after_waiting(self) -> None:
        self._answer_waiting(self._tell_away)

    def refuse_all(self, error: StorageError) -> None:
        # An exception of its own for each: tracebacks of several tasks must not mix in one object.
        self._answer_waiting(lambda change: change.answer(StorageError(error.where, error.reason)))

    def _answer_waiting(self, answer: Callable[[PendingChange], None]) -> None:
        """Call `answer` for each change whose caller waits for the result; keep the other changes in the queue."""
        for change in self._changes:
            if change.on_answer is not None:
                answer(change)
        self._changes = deque(one for one in self._changes if not one.is_over)

    def forget_line(self) -> None:
        pass  # changes that may not have arrived are still in the queue


# The store.

_SMALLEST: Final = 64 * 1024
_LARGEST: Final = 64 * 1024 * 1024
"""Range of the size limit of a document, in bytes; servers copy a document several times."""

T = TypeVar("T")


class DocumentStore(ClientStore[DocumentsClient]):
    """Store of documents that many processes share on a server; see `RedisDocuments` for the options."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "callboard",
        away: WhileAway = "local",
        patience: float = 1.0,
        largest: int = 1024 * 1024,
    ) -> None:
        super().__init__(url, prefix)
        check_seconds(self._whose, [("patience", patience, 0.01)])
        check_away(self._whose, away, get_args(WhileAway))
        _check_largest(self._whose, largest)
        self._largest = largest
        self._settings = (largest,)
        self._away: WhileAway = away
        self._patience = patience

    def _new_client(self) -> DocumentsClient:
        return DocumentsClient(self._line(), self._where, patience=self._patience, away=self._away)

    @property
    def largest(self) -> int:
        """Maximum size of the content of one document in this store, in bytes."""
        return self._largest

    def change(
        self,
        document: Document,
        rule: Rule[T],
        on_answer: Callable[[Done[T] | Away | Exception], object] | None = None,
        /,
    ) -> None:
        """Queue a rule (a function) to be applied to a document, and return at once; may be called from any thread."""
        self._client().change(PendingChange(document, rule, on_answer))

    def mark(self, shelf: str, name: str, /) -> None:
        """Queue an increase of a mark, a counter at the server, and return at once; may be called from any thread."""
        self._client().mark(Document(shelf, name))


def _check_largest(whose: str, largest: object) -> None:
    if isinstance(largest, bool) or not isinstance(largest, int) or not _SMALLEST <= largest <= _LARGEST:
        raise ValueError(f"{whose}(largest=...) is {_SMALLEST:,} to {_LARGEST:,} bytes, got {largest!r}")
