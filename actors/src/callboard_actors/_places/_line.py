"""What is said between a process and the server that keeps limits, whichever server that is."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from callboard import Limit
from callboard_actors._clerk import Connection

_LONGEST_SILENCE = 60_000_000
"""Microseconds; of a longer window, a server that forgets when it is killed forgets the rest."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a limit, as a server keeps them; times in microseconds."""

    concurrency: int | None
    queue: int | None
    calls: int | None
    per: int
    lease: int

    @staticmethod
    def of(limit: Limit, lease: float) -> "Numbers":
        """The numbers of a limit whose holders are believed dead after so many seconds without a word."""
        rate = limit.rate
        calls, per = (None, 0) if rate is None else (rate.calls, round(rate.per * 1e6))
        return Numbers(limit.concurrency, limit.queue, calls, per, round(lease * 1e6))

    @property
    def text(self) -> str:
        """The numbers of a limit in words, for errors."""
        rate = "None" if self.calls is None else f"Rate({self.calls}, per={self.per / 1e6:g})"
        return f"concurrency={self.concurrency}, queue={self.queue}, rate={rate}, lease={self.lease / 1e6:g}"

    @property
    def silence(self) -> int:
        """For how long nobody may begin after the server has: until then, those who had a place have said so."""
        return max(self.lease, min(self.per, _LONGEST_SILENCE))


@dataclass(frozen=True, slots=True)
class Op:
    """One thing that a process has to say about one of its stays.

    `enter` and `leave` the queue or the place, `begin` the body; where everything is said anew, `wait` is for one
    that has waited before, `hold` for one that has a place.
    """

    kind: Literal["enter", "leave", "begin", "wait", "hold"]
    id: str
    tenant: str = ""
    spot: str = ""
    """Where it stands in the queue; the server has said so."""
    token: int = 0
    begun: bool = False

    @property
    def written(self) -> tuple[str, str, str, str, int]:
        """The words of an operation, as servers take them; a place that nobody has begun with is no start."""
        kind = "pause" if self.kind == "hold" and not self.begun else self.kind
        return kind, self.id, self.tenant, self.spot, self.token


@dataclass(frozen=True, slots=True)
class Step:
    """What a process says at once about one place of places: one limit, or one key of it."""

    gate: str
    numbers: Numbers
    epoch: str
    """Which memory of the server's it goes on from; another one has forgotten something. "" says everything anew."""
    ops: Sequence[Op] = ()
    asks_all: bool = False
    """Whether the answer is to tell all places that the process has, because word of one may have been lost."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answers to a step: who has a place, who waits, for whom there is no room."""

    epoch: str = ""
    """"" if it has forgotten something: everything is to be said anew."""
    other: str = ""
    """The numbers that other processes have, if that are others; nothing was done."""
    opens_in: float | None = None
    """Seconds until somebody who waits may have a place because time has passed."""
    granted: dict[str, int] = field(default_factory=dict[str, int])
    """The tokens of new places, or of all, by stay."""
    queued: dict[str, str] = field(default_factory=dict[str, str])
    """Where those who wait stand, by stay."""
    full: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """How many run and wait, where there was no room to wait, by stay."""


class Line(Connection, Protocol):
    """A connection to a server that keeps limits, of one process."""

    async def say(self, steps: Sequence[Step]) -> Sequence[Answer]:
        """Have the server do what is said of each gate, and its answers.

        Raises:
            AwayError: if the server cannot be reached; whether it has heard is unknown.
            StorageError: if it refuses.
        """
        ...

    def heard(self) -> AsyncIterator[tuple[str, str, int]]:
        """Places that were given since they were asked for: gate, stay and token."""
        ...
