"""Pending changes of documents, and the text that results from all changes of one document together.

Decides, and never waits; all of it runs in the client's thread.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from callboard.extend import EVERYBODY, Away, Document, Done, Found, Rule, Written
from callboard_actors._server.documents._transport import StoredDocument

_PROCESS = re.compile(r"[0-9a-f]{16}")
"""Form of a process id. A document may name any text, which must not become the name of a channel."""


@dataclass(slots=True, eq=False)
class PendingChange:
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


class ChangeGroup:
    """All pending changes of one document, in order."""

    def __init__(self, changes: Iterable[PendingChange]) -> None:
        self.changes = list(changes)
        first = self.changes[0].document
        marks = {mark: None for change in self.changes for mark in change.document.marks}
        self.document = Document(first.shelf, first.name, tuple(marks))
        self._says: list[tuple[PendingChange, Done[Any] | Exception]] = []

    def follow(self, shelved: StoredDocument, me: str) -> Written | None:
        """Apply the rules in order, each to the result of the one before; return the new text, if it changes."""
        # Each rule sees only the marks that it has asked for.
        numbers = dict(zip(self.document.marks, shelved.marks, strict=True))
        text, left, written = shelved.text, shelved.left, None
        # A repeated round starts over: answers from an outdated text must not be given.
        self._says = []
        for change in [one for one in self.changes if not one.is_over]:
            marks = tuple(numbers[mark] for mark in change.document.marks)
            try:
                new, says = change.rule(Found(text=text, left=left, marks=marks, now=shelved.now, me=me))
            except Exception as error:  # a rule is foreign code: its error is its caller's answer, and the others go on
                self._says.append((change, error))
                continue
            self._says.append((change, Done(says)))
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
        for change, says in self._says:
            change.answer(says)


def group_by_document(changes: Iterable[PendingChange]) -> list[ChangeGroup]:
    """Group changes by document, in the order of the first change of each."""
    by_document: dict[tuple[str, str], list[PendingChange]] = {}
    for change in changes:
        by_document.setdefault((change.document.shelf, change.document.name), []).append(change)
    return [ChangeGroup(found) for found in by_document.values()]


def _is_process(name: str) -> bool:
    return _PROCESS.fullmatch(name) is not None
