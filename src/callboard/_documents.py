"""Documents that many processes share: what a store of such is asked for, and what it answers.

Who asks decides, in a plain function of the document as it is; the store sees to it that nobody changes it meanwhile.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)

EVERYBODY = "*"
"""All processes that use a store, where it is said who is to be told."""


@dataclass(frozen=True, slots=True)
class Document:
    """The address of a document, and the marks that whoever reads it asks for with it.

    Args:
        shelf: what it belongs to, such as a cache; printable ASCII, up to 200 characters.
        name: of the document there, likewise.
        marks: of the shelf, which its rule looks at besides.
    """

    shelf: str
    name: str
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A document as a rule finds it at the server, and the marks that were asked for.

    Args:
        text: what it says; `None` if there is none, or none that could have been written here.
        left: seconds that it still lives.
        marks: the number of each mark, which goes up when it is set.
        now: the time, in seconds, by the clock of the store: the only one that counts.
        me: this process, as others may have it told.
    """

    text: str | None
    left: float = math.inf
    marks: tuple[int, ...] = ()
    now: float
    me: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a rule makes of a document: its new text, who is told, and how long it lives.

    Args:
        text: what it says from now on; `None` for no document.
        lives: seconds until it is gone, by the clock of the store.
        tell: which processes are told.
        most: how many documents of this kind the shelf has; if there are more, those that have least to live go.
    """

    text: str | None
    lives: float = math.inf
    tell: frozenset[str] = frozenset()
    most: int | None = None


Rule = Callable[[Found], tuple[Written | None, T]]
"""What becomes of a document (`None`: it stays), and what who asks is told of it.

Called in a thread of the store, once more each time that somebody was quicker; so it must not wait, nor remember.
"""


@dataclass(frozen=True, slots=True)
class Done(Generic[V_co]):
    """A rule has been followed, and says this."""

    value: V_co


@dataclass(frozen=True, slots=True)
class Away:
    """The store cannot be reached.

    Args:
        reason: in words.
        refuses: whether calls are to be refused; else they go on without it.
    """

    reason: str
    refuses: bool


class Listener(Protocol):
    """Hears of documents, in a thread of the store."""

    def heard(self, document: Document | None, /) -> None:
        """Be told of a document or a mark, or (`None`) that word of some may have been lost."""
        ...


@runtime_checkable
class SharedDocuments(Protocol):
    """Where documents are kept for many processes. Its methods never wait; from any event loop and thread."""

    @property
    def lease(self) -> float:
        """Seconds without a word after which a process counts as dead."""
        ...

    @property
    def largest(self) -> int:
        """How many bytes a document may have."""
        ...

    def change(
        self,
        document: Document,
        rule: Rule[T],
        on_answer: "Callable[[Done[T] | Away | Exception], object] | None" = None,
        /,
    ) -> None:
        """Have a rule followed, and `on_answer` told what it says; errors are `StorageError`.

        While the store is away the answer is `Away`, soon. A change for which nobody waits is made when it is back.
        """
        ...

    def tend(self, document: Document, rule: Rule[Any], /) -> Callable[[], object]:
        """Have a rule followed several times within each lease, until the function is called that is returned."""
        ...

    def mark(self, shelf: str, name: str, /) -> None:
        """Set a mark of a shelf, now or when the store is back, and tell everybody; later changes see it."""
        ...

    def listen(self, listener: Listener, /) -> None:
        """Tell a listener of documents, as long as it lives.

        After an answer was `Away`, it is told (`None`) when the store is back.
        """
        ...

    def clock(self) -> float:
        """The time of the store, in seconds, as far as it is known here."""
        ...
