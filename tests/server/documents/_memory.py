"""In-memory store of documents that acts like a server and records its requests."""

import math
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

import anyio

from callboard import StorageError
from callboard.extend import Away, Document, Done, Found, Rule, Written

T = TypeVar("T")


class MemoryServer:
    """Server with documents and marks, on the clock of the test."""

    def __init__(self) -> None:
        self.texts: dict[tuple[str, str], tuple[str, float, int | None]] = {}
        self.marks: dict[tuple[str, str], int] = {}
        self.numbers = count(1)

    def found(self, document: Document) -> Found:
        now, key = anyio.current_time(), (document.shelf, document.name)
        if key in self.texts and self.texts[key][1] <= now:
            del self.texts[key]
        text, until, _ = self.texts.get(key, (None, math.inf, None))
        marks = tuple(self.marks.setdefault((document.shelf, mark), next(self.numbers)) for mark in document.marks)
        return Found(text=text, left=until - now, marks=marks, now=now)

    def write(self, document: Document, written: Written) -> None:
        key = (document.shelf, document.name)
        self.texts.pop(key, None)
        if written.text is not None:
            self.texts[key] = written.text, anyio.current_time() + written.lives, written.most
        if written.most is not None:
            counted = [one for one, (*_, most) in self.texts.items() if one[0] == key[0] and most is not None]
            for one in sorted(counted, key=lambda one: self.texts[one][1])[: -written.most]:
                del self.texts[one]


class MemoryDocuments:
    """Store of one process."""

    def __init__(self, server: MemoryServer, largest: int = 100_000, away: str = "local", **_: Any) -> None:
        self.largest = largest
        self.asked: list[Document] = []
        self.is_away = False
        self.failure: StorageError | None = None
        self._refuses = away == "refuse"
        self._server = server
        self._kept: list[tuple[Document, Rule[Any]]] = []

    def change(
        self,
        document: Document,
        rule: Rule[T],
        on_answer: Callable[[Done[T] | Away | Exception], object] | None = None,
        /,
    ) -> None:
        self.asked.append(document)
        answer: Done[T] | Away | Exception
        if self.is_away:
            answer = Away("the store is away", self._refuses)
            if on_answer is None:
                self._kept.append((document, rule))
        elif self.failure is not None:
            answer = self.failure
        else:
            try:
                written, says = rule(self._server.found(document))
                answer = Done(says)
                if written is not None:
                    self._server.write(document, written)
            except LookupError as error:
                answer = error
        if on_answer is not None:
            on_answer(answer)

    def mark(self, shelf: str, name: str, /) -> None:
        self._server.marks[shelf, name] = next(self._server.numbers)

    def back(self) -> None:
        """End the outage."""
        self.is_away = False
        kept, self._kept = self._kept, []
        for document, rule in kept:
            self.change(document, rule)
