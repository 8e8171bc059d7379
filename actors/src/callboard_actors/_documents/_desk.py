"""One process at a server that keeps documents: what all in this process want of them, in rounds of two trips.

First all documents are read that somebody wants something of, then those are written that follow. What another
process was quicker to write is read and tried again.
"""

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Literal

from callboard import StorageError
from callboard.documents import Away, Document, Listener, Rule
from callboard_actors._clerk import AwayError, Clerk, Terms
from callboard_actors._documents._errands import Bundle, Errand, bundles
from callboard_actors._documents._line import DocumentLine, Swap

_logger = logging.getLogger("callboard_actors.documents")
_GOING_ON = {"refuse": "calls are refused", "local": "each process goes on by itself"}

WhileAway = Literal["local", "refuse"]
"""What becomes of calls while the server is away."""

_AT_ONCE = 500
"""Documents of one round."""
_MOST_KEPT = 10_000
"""Errands for which nobody waits, and which a server that is away is told of later."""
_BEATS = 3
"""How often a process gives a sign of life within a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentTerms(Terms):
    """On which terms a desk serves; its patience is that of anybody who waits for the server.

    Args:
        away: what becomes of calls while the server is away.
    """

    away: WhileAway


class Desk(Clerk[DocumentLine]):
    """Follows rules for documents, on behalf of all in this process.

    Args:
        line: makes a connection that is not open yet.
        terms: how it serves.
        listeners: who is told of documents.
    """

    def __init__(
        self, line: Callable[[], DocumentLine], terms: DocumentTerms, listeners: "weakref.WeakSet[Listener]"
    ) -> None:
        self.going_on = _GOING_ON[terms.away]
        self.ahead = time.time() - time.monotonic()
        """How much later it is there than a clock says here that only counts."""
        self._terms = terms
        self._listeners = listeners
        self._errands: deque[Errand] = deque()
        self._marks: dict[Document, None] = {}
        self._tended: dict[int, tuple[Document, Rule[Any]]] = {}
        self._numbers = count()
        self._beat_at = 0.0
        self._owes_word = False
        """Whether somebody was told that the server is away, and is to hear when it is not."""
        super().__init__(line, terms, _logger)

    def change(self, errand: Errand) -> None:
        """Have a rule followed; from any thread."""
        if not self.post(lambda: self._enter(errand)):
            errand.answer(self.closed())

    def mark(self, document: Document) -> None:
        """Have a mark set at the server, which tells every process; from any thread."""
        self.post(lambda: self._marks.update({document: None}))

    def tend(self, document: Document, rule: Rule[Any]) -> Callable[[], object]:
        """Have a rule followed at each sign of life; from any thread."""
        number = next(self._numbers)

        def start() -> None:
            self._tended[number] = document, rule

        def stop() -> None:
            self._tended.pop(number, None)

        self.post(start)
        return partial(self.post, stop)

    def _enter(self, errand: Errand) -> None:
        if errand.on_answer is None:
            self._keep(errand)
            return
        if self.is_away_for_long:
            self._tell_away(errand)
            return
        self._errands.append(errand)
        self.loop.call_later(self._terms.patience, self._tell_away, errand)

    def _keep(self, errand: Errand) -> None:
        self._errands.append(errand)
        if len(self._errands) > _MOST_KEPT and self.is_away_for_long:
            lost = self._errands.popleft()
            _logger.warning("%s: %d errands wait; one is given up: %r", self.where, _MOST_KEPT, lost.document)

    def _tell_away(self, errand: Errand) -> None:
        if not errand.is_over:
            self._owes_word = True
            errand.answer(Away(f"{self.where} cannot be reached", self._terms.away == "refuse"))

    def has_work(self) -> bool:
        """Always: who has asked once is to be told of what happens."""
        return True

    def has_last_words(self) -> bool:
        """Whether a mark is to be set, or a rule to be followed."""
        return bool(self._marks) or any(not errand.is_over for errand in self._errands)

    async def listen(self, line: DocumentLine) -> None:
        """Tell the listeners of documents that other processes have changed.

        Raises:
            AwayError: when the line breaks.
        """
        async for document in line.heard():
            self._tell(document)
        raise AwayError("it says no more")

    def _tell(self, document: Document | None) -> None:
        for listener in list(self._listeners):
            listener.heard(document)

    async def say_what_is_due(self, line: DocumentLine) -> float:
        """Say it; returns when there is more."""
        if self.loop.time() >= self._beat_at:
            self._beat_at = self.loop.time() + self._terms.lease / _BEATS
            self._errands.extend(Errand(document, rule, None) for document, rule in self._tended.values())
            self._note_time(await line.now())
        if self._owes_word:
            self._owes_word = False
            self._tell(None)
        if self._marks:
            await self._set_marks(line)
        if self._errands:
            await self._go(line)
        return self.loop.time() if self._errands or self._marks else self._beat_at

    async def _set_marks(self, line: DocumentLine) -> None:
        marks, self._marks = self._marks, {}
        try:
            await line.mark(list(marks))
        except BaseException:
            self._marks = {**marks, **self._marks}
            raise

    async def _go(self, line: DocumentLine) -> None:
        """Do what is wanted, as far as nobody else is quicker."""
        taken = [self._errands.popleft() for _ in range(min(_AT_ONCE, len(self._errands)))]
        undone = [one for one in taken if not one.is_over]
        try:
            undone = await self._round(line, bundles(undone))
        finally:
            # In front, in their order: who comes later must not overtake.
            self._errands.extendleft(reversed([one for one in undone if not one.is_over]))

    async def _round(self, line: DocumentLine, wanted: list[Bundle]) -> list[Errand]:
        """Read, and write what follows; returns the errands that have to be done again."""
        found = await line.read([bundle.document for bundle in wanted])
        swaps: dict[Bundle, Swap] = {}
        for bundle, shelved in zip(wanted, found, strict=True):
            self._note_time(shelved.now)
            written = bundle.follow(shelved, self.client)
            if written is None:
                bundle.answer()
            else:
                swaps[bundle] = Swap(bundle.document, shelved.version, written)
        if not swaps:
            return []
        try:
            done = await line.write(list(swaps.values()))
        except AwayError:
            # Perhaps it was heard. What is counted twice would be wrong; what nobody waits for says what is to be.
            for errand in [one for bundle in swaps for one in bundle.errands if one.on_answer is not None]:
                self._tell_away(errand)
            raise
        for bundle, is_done in zip(swaps, done, strict=True):
            if is_done:
                bundle.answer()
        return [one for bundle, is_done in zip(swaps, done, strict=True) if not is_done for one in bundle.errands]

    def _note_time(self, now: float) -> None:
        self.ahead = now - time.monotonic()

    def look_after_waiting(self) -> None:
        """Have nobody wait any more; what nobody waits for is kept."""
        for errand in self._errands:
            if errand.on_answer is not None:
                self._tell_away(errand)
        self._errands = deque(one for one in self._errands if not one.is_over)

    def refuse_all(self, error: StorageError) -> None:
        """Answer everybody who waits with this error."""
        waiting, self._errands = self._errands, deque(one for one in self._errands if one.on_answer is None)
        for errand in waiting:
            if errand.on_answer is not None:
                self._owes_word = True
                errand.answer(StorageError(error.where, error.reason))

    def forget_line(self) -> None:
        """Have everybody look again: words may have been lost."""
        self._owes_word = True
        self._beat_at = 0.0
