"""What users see of a store of shared documents, whichever server has it: its options, checked, and the protocol."""

import time
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar, get_args

from callboard.documents import Away, Document, Done, Listener, Rule
from callboard_actors._documents._desk import Desk, DocumentTerms, WhileAway
from callboard_actors._documents._errands import Errand
from callboard_actors._documents._line import DocumentLine
from callboard_actors._server_store import ServerStore, check_seconds

_SMALLEST: Final = 64 * 1024
_LARGEST: Final = 64 * 1024 * 1024
"""Bytes that a document may have at least and at most; servers copy them several times."""

T = TypeVar("T")


class DocumentStore(ServerStore[Desk]):
    """A store of shared documents: one desk in each process that asks it.

    Args:
        whose: the class that a user has written, for errors.
        where: the server, without a password.
        line: makes a connection to it.
        lease: seconds.
        away: what becomes of calls while the server is away.
        patience: seconds.
        largest: bytes.
    """

    def __init__(
        self,
        whose: str,
        where: str,
        line: Callable[[], DocumentLine],
        *,
        lease: float,
        away: WhileAway,
        patience: float,
        largest: int,
    ) -> None:
        check_seconds(whose, [("lease", lease, 0.1), ("patience", patience, 0.01)])
        if away not in get_args(WhileAway):
            raise ValueError(f"{whose}(away=...) is one of {get_args(WhileAway)}, got {away!r}")
        check_largest(whose, largest)
        self._largest = largest
        self._line = line
        self._terms = DocumentTerms(where=where, lease=lease, away=away, patience=patience)
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        super().__init__(whose, where)

    def _new_clerk(self) -> Desk:
        return Desk(self._line, self._terms, self._listeners)

    def __getstate__(self) -> dict[str, Any]:
        """What it was made with; who listens to this one does not listen to a copy."""
        return {name: value for name, value in super().__getstate__().items() if name != "_listeners"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_listeners": weakref.WeakSet()})

    @property
    def lease(self) -> float:
        """Seconds without a word after which a process counts as dead."""
        return self._terms.lease

    @property
    def largest(self) -> int:
        """How many bytes a document may have."""
        return self._largest

    def change(
        self,
        document: Document,
        rule: Rule[T],
        on_answer: Callable[[Done[T] | Away | Exception], object] | None = None,
        /,
    ) -> None:
        """Have a rule followed, and never wait; from any thread."""
        self._clerk().change(Errand(document, rule, on_answer))

    def tend(self, document: Document, rule: Rule[Any], /) -> Callable[[], object]:
        """Have a rule followed at each sign of life, until the function is called that is returned."""
        return self._clerk().tend(document, rule)

    def mark(self, shelf: str, name: str, /) -> None:
        """Set a mark, and never wait; from any thread."""
        self._clerk().mark(Document(shelf, name))

    def listen(self, listener: Listener, /) -> None:
        """Tell a listener of documents, as long as it lives."""
        self._listeners.add(listener)

    def clock(self) -> float:
        """The time of the server, in seconds, as far as it is known here."""
        return time.monotonic() + self._clerk().ahead


def check_largest(whose: str, largest: object) -> None:
    """Raise ValueError for what is no number of bytes that a document may have."""
    if isinstance(largest, bool) or not isinstance(largest, int) or not _SMALLEST <= largest <= _LARGEST:
        raise ValueError(f"{whose}(largest=...) is {_SMALLEST:,} to {_LARGEST:,} bytes, got {largest!r}")
