"""Base of `RedisDocuments` and `PostgresDocuments`: checked options, and the client of one process at the server.

The client applies rules to documents in rounds of two round trips. A round first reads all documents with pending
changes, then writes the new texts. A document that another process changed in between is read and tried again.
"""

import logging
import time
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, Literal, TypeVar, get_args

from callboard import StorageError
from callboard.extend import Away, Document, Done, Listener, Rule
from callboard_actors._server._client import AwayError, BackgroundClient, ClientOptions
from callboard_actors._server._store import ClientStore, check_away
from callboard_actors._server.documents._changes import ChangeGroup, PendingChange, group_by_document
from callboard_actors._server.documents._transport import DocumentsTransport, Swap
from callboard_actors._util._numbers import check_seconds

# The client.

_logger = logging.getLogger("callboard_actors.documents")
_GOING_ON = {"refuse": "calls are refused", "local": "each process goes on by itself"}

WhileAway = Literal["local", "refuse"]
"""Policy for calls during an outage."""

_AT_ONCE = 500
"""Documents in one round."""
_MOST_KEPT = 10_000
"""Largest number of pending changes without a waiting caller that are kept for a server in an outage."""
_BEATS = 3
"""Heartbeats within a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOptions(ClientOptions):
    """Options of a documents client. Its patience is that of each waiting caller.

    Args:
        away: what happens to calls during an outage.
    """

    away: WhileAway


class DocumentsClient(BackgroundClient[DocumentsTransport]):
    """Documents client: applies rules to documents for all callers of this process."""

    def __init__(
        self, line: Callable[[], DocumentsTransport], terms: DocumentOptions, listeners: "weakref.WeakSet[Listener]"
    ) -> None:
        self.going_on = _GOING_ON[terms.away]
        # Seconds that the server's clock is ahead of the local monotonic clock; a guess until the first answer. Other
        # threads read it without a lock: it is one float, written in one thread.
        self.ahead = time.time() - time.monotonic()
        self._terms = terms
        self._listeners = listeners
        # From here on: client's thread only. Other threads post functions, so no lock is needed.
        self._changes: deque[PendingChange] = deque()
        self._marks: dict[Document, None] = {}  # an ordered set: a mark set twice before it is sent is one mark
        self._tended: dict[int, tuple[Document, Rule[Any]]] = {}
        self._numbers = count()
        self._beat_at = 0.0
        # True if a caller was told of an outage, so that listeners must be told when it is over.
        self._owes_word = False
        # Last: the thread starts here, and uses the fields above.
        super().__init__(line, terms, _logger)

    def change(self, change: PendingChange) -> None:
        """Apply a rule to a document; may be called from any thread."""
        if not self.post(lambda: self._enter(change)):
            change.answer(self.closed())

    def mark(self, document: Document) -> None:
        """Set a mark at the server, which tells every process; may be called from any thread."""
        self.post(lambda: self._marks.update({document: None}))

    def tend(self, document: Document, rule: Rule[Any]) -> Callable[[], object]:
        """Apply a rule at each heartbeat until the returned function is called; may be called from any thread."""
        number = next(self._numbers)

        def start() -> None:
            self._tended[number] = document, rule

        def stop() -> None:
            self._tended.pop(number, None)

        self.post(start)
        return partial(self.post, stop)

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
        self.loop.call_later(self._terms.patience, self._tell_away, change)

    def _keep(self, change: PendingChange) -> None:
        self._changes.append(change)
        # Only in an outage: while the server answers, the queue empties by itself.
        if len(self._changes) > _MOST_KEPT and self.is_away_for_long:
            lost = self._changes.popleft()
            _logger.warning("%s: %d changes wait; one is given up: %r", self.where, _MOST_KEPT, lost.document)

    def _tell_away(self, change: PendingChange) -> None:
        if not change.is_over:
            # What the caller does without the server is unknown to others, so its listeners must look again afterwards.
            self._owes_word = True
            change.answer(Away(f"{self.where} cannot be reached", self._terms.away == "refuse"))

    def has_work(self) -> bool:
        """Return True: a process that has used the store once must hear of changes from then on."""
        return True

    def has_last_words(self) -> bool:
        """Return whether marks are to be set, or rules to be applied."""
        return bool(self._marks) or any(not change.is_over for change in self._changes)

    async def listen(self, line: DocumentsTransport) -> None:
        """Notify listeners of documents that other processes have changed; raise AwayError when the connection ends."""
        async for document in line.heard():
            self._tell(document)
        raise AwayError("it says no more")

    def _tell(self, document: Document | None) -> None:
        # A copy: a listener may be collected or added while another one runs.
        for listener in list(self._listeners):
            listener.heard(document)

    async def say_what_is_due(self, line: DocumentsTransport) -> float:
        """Send what is due; return the loop time of the next call."""
        if self.loop.time() >= self._beat_at:
            self._beat_at = self.loop.time() + self._terms.lease / _BEATS
            self._changes.extend(PendingChange(document, rule, None) for document, rule in self._tended.values())
            self._note_time(await line.now())
        # `None` tells the listeners that any document may have changed unnoticed.
        if self._owes_word:
            self._owes_word = False
            self._tell(None)
        # Before the changes: a rule that reads its marks in this round sees those set here.
        if self._marks:
            await self._set_marks(line)
        if self._changes:
            await self._go(line)
        return self.loop.time() if self._changes or self._marks else self._beat_at

    async def _set_marks(self, line: DocumentsTransport) -> None:
        # Taken out before the await, so that marks set during it are kept for the next round.
        marks, self._marks = self._marks, {}
        try:
            await line.mark(list(marks))
        except BaseException:
            # A mark is a counter: setting one a second time only makes readers look once more.
            self._marks = {**marks, **self._marks}
            raise

    async def _go(self, line: DocumentsTransport) -> None:
        """Do one round of changes."""
        taken = [self._changes.popleft() for _ in range(min(_AT_ONCE, len(self._changes)))]
        undone = [one for one in taken if not one.is_over]
        try:
            undone = await self._round(line, group_by_document(undone))
        finally:
            # Back to the front, in their order: later changes must not overtake. Also when this round is cancelled.
            self._changes.extendleft(reversed([one for one in undone if not one.is_over]))

    async def _round(self, line: DocumentsTransport, wanted: list[ChangeGroup]) -> list[PendingChange]:
        """Read documents and write the results of the rules; return the changes that must be repeated."""
        found = await line.read([group.document for group in wanted])
        swaps: dict[ChangeGroup, Swap] = {}
        for group, shelved in zip(wanted, found, strict=True):
            self._note_time(shelved.now)
            written = group.follow(shelved, self.client)
            if written is None:
                # Nothing to write: the answer is true as of the read.
                group.answer()
            else:
                swaps[group] = Swap(group.document, shelved.version, written)
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

    def _note_time(self, now: float) -> None:
        self.ahead = now - time.monotonic()

    def look_after_waiting(self) -> None:
        """Answer waiting callers with the outage; keep the changes without a caller."""
        for change in self._changes:
            if change.on_answer is not None:
                self._tell_away(change)
        self._changes = deque(one for one in self._changes if not one.is_over)

    def refuse_all(self, error: StorageError) -> None:
        """Raise an error in every waiting caller."""
        waiting, self._changes = self._changes, deque(one for one in self._changes if one.on_answer is None)
        for change in waiting:
            if change.on_answer is not None:
                self._owes_word = True
                change.answer(StorageError(error.where, error.reason))

    def forget_line(self) -> None:
        """Make the listeners look again after the next connect, because notifications may have been lost."""
        self._owes_word = True
        self._beat_at = 0.0  # the next connection begins with a heartbeat


# The store.

_SMALLEST: Final = 64 * 1024
_LARGEST: Final = 64 * 1024 * 1024
"""Range of the size limit of a document, in bytes; servers copy a document several times."""

T = TypeVar("T")


class DocumentStore(ClientStore[DocumentsClient]):
    """Store of shared documents. `RedisDocuments` documents the options."""

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
        super().__init__(url, prefix)
        check_seconds(self._whose, [("lease", lease, 0.1), ("patience", patience, 0.01)])
        check_away(self._whose, away, get_args(WhileAway))
        _check_largest(self._whose, largest)
        self._largest = largest
        self._terms = DocumentOptions(where=self._where, lease=lease, away=away, patience=patience)
        # Weak: a listener, such as a circuit breaker, ends with its owner. Shared with the client, which reads it.
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()

    @abstractmethod
    def _line(self) -> Callable[[], DocumentsTransport]:
        """Return a function that makes a connection to the server, and does not refer to this store."""

    def _new_client(self) -> DocumentsClient:
        return DocumentsClient(self._line(), self._terms, self._listeners)

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


def _check_largest(whose: str, largest: object) -> None:
    if isinstance(largest, bool) or not isinstance(largest, int) or not _SMALLEST <= largest <= _LARGEST:
        raise ValueError(f"{whose}(largest=...) is {_SMALLEST:,} to {_LARGEST:,} bytes, got {largest!r}")
