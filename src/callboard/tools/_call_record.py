"""Stored knowledge about one call between two runs. Agents use the same record for their nodes."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from langgraph.types import Command, Interrupt

NOT_YET: Final = object()
"""Placeholder for a missing output; a node may return `None`."""


class CallRecord(NamedTuple):
    """Stored knowledge about one call; frozen.

    A named tuple, because one is made for each call of an agent, and a frozen dataclass takes five times as long to
    create.
    """

    answers: tuple[Any, ...] = ()
    """Accepted answers, in the order of the questions."""
    digests: tuple[str | None, ...] = ()
    """Digest for each answer, if its question had one; the answer is valid only for that digest."""
    pending: tuple[Interrupt, ...] = ()
    """Open questions of the call."""
    own: bool = False
    """`True` if the call itself asked, `False` if a graph inside of it did."""
    mark: str | None = None
    """Mark that an observer left when the call stopped."""
    claimed: bool = False
    """`True` once the body was about to start. If nothing else is known, the outcome of the call is unknown."""
    error: str | None = None
    """Error of the last run as a text; the call runs again."""
    output: object = NOT_YET
    """Result of the call; its questions are settled."""
    parent: Command[Any] | None = None
    """Command for the parent graph that the call ended with."""

    @property
    def is_finished(self) -> bool:
        """`True` if the call has a result."""
        return self.output is not NOT_YET

    @property
    def has_ended(self) -> bool:
        """`True` if the call must not run again."""
        return self.output is not NOT_YET or self.parent is not None

    def accepted(self) -> "CallRecord":
        """Return a record with the answers only, for a call that runs again from its beginning and gets them again."""
        return CallRecord(answers=self.answers, digests=self.digests, mark=self.mark)

    def encode(self) -> dict[str, Any]:
        """Return the record as a plain dict without defaults, for storage."""
        if self.output is not NOT_YET:
            # A finished call stores nothing else: its answers and questions are settled, and storage grows only with
            # what is needed.
            return {"output": self.output}
        if self.parent is not None:
            return {"parent": self.parent}
        stored: dict[str, Any] = {}
        if self.answers:
            stored["answers"] = [*self.answers]
        if self.digests:
            stored["digests"] = [*self.digests]
        if self.pending:
            stored |= {"pending": [*self.pending], "own": self.own}
        if self.mark is not None:
            stored["mark"] = self.mark
        if self.claimed:
            stored["claimed"] = True
        if self.error is not None:
            stored["error"] = self.error
        return stored

    @classmethod
    def decode(cls, stored: Mapping[str, Any]) -> Self:
        """Return a record from stored data of any version; missing fields get their defaults."""
        return cls(
            answers=tuple(stored.get("answers", ())),
            digests=tuple(stored.get("digests", ())),
            pending=tuple(stored.get("pending", ())),
            own=bool(stored.get("own")),
            mark=stored.get("mark"),
            claimed=bool(stored.get("claimed")),
            error=stored.get("error"),
            output=stored.get("output", NOT_YET),
            parent=stored.get("parent"),
        )


NOTHING_KNOWN: Final = CallRecord()
"""Record of a call that has not run yet."""
