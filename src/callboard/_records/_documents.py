"""Documents that many processes share: protocol of their store, and the records that its methods take and return.

A change is a plain function of the current document, called a rule. The store guarantees that no other process changes
the document between the rule's reading and writing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Document:
    """Address of a shared document, and names of the marks (counters of the document's collection) to read with it.

    Args:
        shelf: collection of the document, such as a cache; printable ASCII, up to 200 characters.
        name: name of the document in the collection; printable ASCII, up to 200 characters.
        marks: names of marks of the collection that the rule needs as well.
    """

    shelf: str
    name: str
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Current state of a shared document and of the requested marks (counters); argument of a `Rule` function.

    Args:
        text: content; `None` if there is no document, or none that this version of callboard could have written.
        left: seconds until the document expires.
        marks: counter of each requested mark; setting a mark increases its counter.
        now: time of the store, in seconds. Rules use no other clock.
    """

    text: str | None
    left: float = math.inf
    marks: tuple[int, ...] = ()
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """New state of a shared document, as a `Rule` function returns it.

    Args:
        text: new content; `None` to delete the document.
        lives: seconds until the document expires, by the clock of the store.
        most: maximum number of documents of this kind in the collection. Documents above it are deleted, those with the
            least time to live first.
    """

    text: str | None
    lives: float = math.inf
    most: int | None = None


Rule = Callable[[Found], tuple[Written | None, T]]
"""Function that takes a document, and returns the new state (`None`: unchanged) and a value for the caller of `change`.

It runs in a thread of the store, and again each time that another process changed the document first. So it must not
wait, and must have no side effects.
"""


@dataclass(frozen=True, slots=True)
class Done(Generic[V_co]):
    """Answer of a document store that has made a change, with the value that the `Rule` function returned.

    Args:
        value: the value that the `Rule` returned.
    """

    value: V_co


@dataclass(frozen=True, slots=True)
class Away:
    """Answer that a caller gets while the document store cannot be reached.

    Args:
        reason: description of the outage for errors and logs.
        refuses: `True` if calls must be refused during the outage; otherwise they continue without the store.
    """

    reason: str
    refuses: bool


@runtime_checkable
class SharedDocuments(Protocol):
    """Store of documents that many processes read and change.

    No method waits. All methods may be called from any event loop and any thread.
    """

    @property
    def largest(self) -> int:
        """Maximum size of the content of one document in this store, in bytes."""
        ...

    def change(
        self,
        document: Document,
        rule: Rule[T],
        on_answer: "Callable[[Done[T] | Away | Exception], object] | None" = None,
        /,
    ) -> None:
        """Change a document by a `Rule` function, and pass the store's answer to the callback `on_answer`.

        During an outage the answer is `Away`, soon. A change without `on_answer` is kept, and made after the outage.

        Args:
            document: address of the document.
            rule: computes the new state.
            on_answer: receives `Done`, `Away`, or an exception; errors of the store are `StorageError`.
        """
        ...

    def mark(self, shelf: str, name: str, /) -> None:
        """Increase a mark (counter) of a document collection, for all processes; during an outage, do this later.

        Args:
            shelf: name of the collection.
            name: name of the mark.
        """
        ...
