"""In-memory store of documents that acts like a server and records its requests."""

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, TypeVar

from callboard import StorageError
from callboard.extend import EVERYBODY, Away, Document, Done, Found, Listener, Rule, Written

T = TypeVar("T")


class MemoryServer:
    """Server with documents, marks and processes."""

    def __init__(self) -> None:
        self.texts: dict[tuple[str, str], tuple[str, float, int | None]] = {}
        self.marks: dict[tuple[str, str], int] = {}
        self.processes: list[MemoryDocuments] = []
        self.ahead = 0.0
        self._numbers = count(1)

    def now(self) -> float:
        return time.monotonic() + self.ahead

    def beat(self) -> None:
        """Let all live processes apply the rules of the documents that they tend."""
        for process in self.processes:
            for document, rule in list(process.tended.values()):
                process.change(document, rule)

    def found(self, document: Document, me: str) -> Found:
        key = (document.shelf, document.name)
        if key in self.texts and self.texts[key][1] <= self.now():
            del self.texts[key]
        text, until, _ = self.texts.get(key, (None, math.inf, None))
        marks = tuple(self.marks.setdefault((document.shelf, mark), next(self._numbers)) for mark in document.marks)
        return Found(text=text, left=until - self.now(), marks=marks, now=self.now(), me=me)

    def write(self, document: Document, written: Written) -> None:
        key = (document.shelf, document.name)
        self.texts.pop(key, None)
        if written.text is not None:
            self.texts[key] = written.text, self.now() + written.lives, written.most
        if written.most is not None:
            counted = [one for one, (*_, most) in self.texts.items() if one[0] == key[0] and most is not None]
            for one in sorted(counted, key=lambda one: self.texts[one][1])[: -written.most]:
                del self.texts[one]
        self.tell(document, written.tell)

    def set_mark(self, document: Document) -> None:
        self.marks[document.shelf, document.name] = next(self._numbers)
        self.tell(document, frozenset((EVERYBODY,)))

    def tell(self, document: Document | None, whom: frozenset[str]) -> None:
        for process in self.processes:
            if EVERYBODY in whom or process.me in whom:
                for listener in process.listeners:
                    listener.heard(document)


class MemoryDocuments:
    """Store of one process."""

    def __init__(self, server: MemoryServer, lease: float = 0.6, largest: int = 100_000, away: str = "local") -> None:
        self.me = f"{len(server.processes):016x}"
        self.lease, self.largest = lease, largest
        self.tended: dict[int, tuple[Document, Rule[Any]]] = {}
        self.listeners: list[Listener] = []
        self.asked: list[Document] = []
        self.is_away = False
        self.held: list[Callable[[], object]] | None = None
        """Delayed answers, if a test holds them back."""
        self.failure: StorageError | None = None
        self._refuses = away == "refuse"
        self._server = server
        self._numbers = count()
        server.processes.append(self)

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
        elif self.failure is not None:
            answer = self.failure
        else:
            written, says = rule(self._server.found(document, self.me))
            if written is not None:
                self._server.write(document, written)
            answer = Done(says)
        if on_answer is not None and self.held is not None:
            self.held.append(partial(on_answer, answer))
        elif on_answer is not None:
            on_answer(answer)

    def tend(self, document: Document, rule: Rule[Any], /) -> Callable[[], object]:
        number = next(self._numbers)
        self.tended[number] = document, rule
        return lambda: self.tended.pop(number, None)

    def mark(self, shelf: str, name: str, /) -> None:
        self._server.set_mark(Document(shelf, name))

    def listen(self, listener: Listener, /) -> None:
        self.listeners.append(listener)

    def clock(self) -> float:
        return self._server.now()

    def back(self) -> None:
        """End the outage."""
        self.is_away = False
        for listener in self.listeners:
            listener.heard(None)
