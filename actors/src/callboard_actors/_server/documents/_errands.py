"""Pending changes of documents, and the text that results from all changes of one document together.

Decides, and never waits; all of it runs in the client's thread.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from callboard.extend import EVERYBODY, Away, Document, Done, Found, Rule, Written
from callboard_actors._server.documents._line import Shelved

_PROCESS = re.compile(r"[0-9a-f]{16}")
"""Form of a process id. A document may name any text, which must not become the name of a channel."""


@dataclass(slots=True, eq=False)
class Errand:
    """Pending change: a rule to apply to a document, and the caller's callback, if one waits."""

    document: Document
    rule: Rule[Any]
    on_answer: Callable[[Done[Any] | Away | Exception], object] | None
    # Set by the first answer: the outage timer and the server may both answer.
    is_over: bool = False

    def answer(self, answer: Done[Any] | Away | Exception) -> None:
        """Answer the waiting caller; a second answer is dropped."""
        if not self.is_over:
            self.is_over = True
            if self.on_answer is not None:
                self.on_answer(answer)


class Bundle:
    """All pending changes of one document, in order.

    Args:
        errands: for one document.
    """

    def __init__(self, errands: Iterable[Errand]) -> None:
        self.errands = list(errands)
        first = self.errands[0].document
        marks = {mark: None for errand in self.errands for mark in errand.document.marks}
        self.document = Document(first.shelf, first.name, tuple(marks))
        self._says: list[tuple[Errand, Done[Any] | Exception]] = []

    def follow(self, shelved: Shelved, me: str) -> Written | None:
        """Apply the rules in order, each to the result of the one before; return the new text, if it changes."""
        # Each rule sees only the marks that it has asked for.
        numbers = dict(zip(self.document.marks, shelved.marks, strict=True))
        text, left, written = shelved.text, shelved.left, None
        # A repeated round starts over: answers from an outdated text must not be given.
        self._says = []
        for errand in [one for one in self.errands if not one.is_over]:
            marks = tuple(numbers[mark] for mark in errand.document.marks)
            try:
                new, says = errand.rule(Found(text=text, left=left, marks=marks, now=shelved.now, me=me))
            except Exception as error:  # a rule is foreign code: its error is its caller's answer, and the others go on
                self._says.append((errand, error))
                continue
            self._says.append((errand, Done(says)))
            if new is not None:
                # The next rule sees this result as if it had been read.
                text, left = new.text, new.lives
                written = new if written is None else replace(new, tell=written.tell | new.tell)
        # Deleting a document that does not exist, with no process to tell, is no change.
        if written is None or (written.text is None and not shelved.version and not written.tell):
            return None
        # Names come from document texts, which anything with access to the server may have written.
        return replace(written, tell=frozenset(one for one in written.tell if one == EVERYBODY or _is_process(one)))

    def answer(self) -> None:
        """Give all callers the answers of their rules, now that the text is written."""
        for errand, says in self._says:
            errand.answer(says)


def bundles(errands: Iterable[Errand]) -> list[Bundle]:
    """Group changes by document, in the order of the first change of each."""
    by_document: dict[tuple[str, str], list[Errand]] = {}
    for errand in errands:
        by_document.setdefault((errand.document.shelf, errand.document.name), []).append(errand)
    return [Bundle(found) for found in by_document.values()]


def _is_process(name: str) -> bool:
    return _PROCESS.fullmatch(name) is not None
