"""What a process wants of documents, and what follows for one document from all that is wanted of it at once.

Decides, and never waits; everything here happens in the thread of one desk.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from callboard.documents import EVERYBODY, Away, Document, Done, Found, Rule, Written
from callboard_actors._documents._line import Shelved

_PROCESS = re.compile(r"[0-9a-f]{16}")
"""How processes are named; what else a document names is nobody, and may be no channel of the server's."""


@dataclass(slots=True, eq=False)
class Errand:
    """A rule to be followed, and who waits for what it says."""

    document: Document
    rule: Rule[Any]
    on_answer: Callable[[Done[Any] | Away | Exception], object] | None
    is_over: bool = False

    def answer(self, answer: Done[Any] | Away | Exception) -> None:
        """Answer whoever waits for the errand; a second answer is dropped."""
        if not self.is_over:
            self.is_over = True
            if self.on_answer is not None:
                self.on_answer(answer)


class Bundle:
    """All that is wanted of one document at once, in order.

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
        """Follow the rules, each upon what those before it have made of the document; what follows, if anything."""
        numbers = dict(zip(self.document.marks, shelved.marks, strict=True))
        text, left, written = shelved.text, shelved.left, None
        self._says = []
        for errand in [one for one in self.errands if not one.is_over]:
            marks = tuple(numbers[mark] for mark in errand.document.marks)
            try:
                new, says = errand.rule(Found(text=text, left=left, marks=marks, now=shelved.now, me=me))
            except Exception as error:  # a rule is another's code; who waits for it must not wait for ever
                self._says.append((errand, error))
                continue
            self._says.append((errand, Done(says)))
            if new is not None:
                text, left = new.text, new.lives
                written = new if written is None else replace(new, tell=written.tell | new.tell)
        if written is None or (written.text is None and not shelved.version and not written.tell):
            return None
        return replace(written, tell=frozenset(one for one in written.tell if one == EVERYBODY or _is_process(one)))

    def answer(self) -> None:
        """Tell all what their rules say, now that it is so."""
        for errand, says in self._says:
            errand.answer(says)


def bundles(errands: Iterable[Errand]) -> list[Bundle]:
    """Errands by document, in the order of the first of each."""
    by_document: dict[tuple[str, str], list[Errand]] = {}
    for errand in errands:
        by_document.setdefault((errand.document.shelf, errand.document.name), []).append(errand)
    return [Bundle(found) for found in by_document.values()]


def _is_process(name: str) -> bool:
    return _PROCESS.fullmatch(name) is not None
