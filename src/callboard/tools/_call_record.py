"""What is known of one call between two runs. An agent knows the same of its nodes, which are tasks like calls."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from langgraph.types import Command, Interrupt

NOT_YET: Final = object()
"""In the place of an output that there is not; a node may well return `None`."""


class CallRecord(NamedTuple):
    """What is known of a call; frozen.

    A named tuple, because one is made for every call of an agent, and a frozen dataclass takes five times as long.
    """

    answers: tuple[Any, ...] = ()
    """What it has accepted, in the order of its questions."""
    digests: tuple[str | None, ...] = ()
    """What each of the answers is good for, where its question said so."""
    pending: tuple[Interrupt, ...] = ()
    """Its open questions."""
    own: bool = False
    """Whether the call itself has asked, and not a graph that it runs."""
    mark: str | None = None
    """What an observer left where the call stopped."""
    claimed: bool = False
    """Whether its body was begun; if that is all, nobody knows whether it had any effect."""
    error: str | None = None
    """What it raised in the last run, in words; it is run again."""
    output: object = NOT_YET
    """Its result; what it asked on the way is settled then."""
    parent: Command[Any] | None = None
    """The command for the graph around ours that it ended with."""

    @property
    def is_finished(self) -> bool:
        """Whether it has a result."""
        return self.output is not NOT_YET

    @property
    def has_ended(self) -> bool:
        """Whether it need not run any more."""
        return self.output is not NOT_YET or self.parent is not None

    def accepted(self) -> "CallRecord":
        """What stays true when the call starts anew: the answers, which it gets again."""
        return CallRecord(answers=self.answers, digests=self.digests, mark=self.mark)

    def encode(self) -> dict[str, Any]:
        """The record as it is stored: a plain dict with what there is."""
        if self.output is not NOT_YET:
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
        """A record that was stored, by whichever version."""
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
"""Of a call that has not run yet."""
