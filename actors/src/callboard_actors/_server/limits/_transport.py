"""Messages between a process and a server of limits, whichever server that is."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from callboard import Limit
from callboard_actors._server._client import Connection

_LONGEST_SILENCE = 60_000_000
"""Microseconds; of a window longer than this, a killed server forgets the starts."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of a limit as the server keeps them; times in microseconds."""

    concurrency: int | None
    queue: int | None
    calls: int | None
    per: int
    lease: int

    @staticmethod
    def of(limit: Limit, lease: float) -> "Numbers":
        """Return the numbers of a limit whose processes count as dead after `lease` seconds without a heartbeat."""
        rate = limit.rate
        calls, per = (None, 0) if rate is None else (rate.calls, round(rate.per * 1e6))
        return Numbers(limit.concurrency, limit.queue, calls, per, round(lease * 1e6))

    @property
    def text(self) -> str:
        """Text of the numbers for errors; also the form in which the server compares them."""
        rate = "None" if self.calls is None else f"Rate({self.calls}, per={self.per / 1e6:g})"
        return f"concurrency={self.concurrency}, queue={self.queue}, rate={rate}, lease={self.lease / 1e6:g}"

    @property
    def silence(self) -> int:
        """Microseconds after a server's start without new permits, so that earlier holders can report theirs first."""
        return max(self.lease, min(self.per, _LONGEST_SILENCE))


@dataclass(frozen=True, slots=True)
class Op:
    """Change of one permit, as a process reports it.

    `enter` requests a permit, `leave` releases it or leaves the queue, `begin` is the start of the body. A full report
    has `wait` for a call that already had a place in the queue, and `hold` for a call with a permit.
    """

    kind: Literal["enter", "leave", "begin", "wait", "hold"]
    id: str
    tenant: str = ""
    spot: str = ""
    """Place in the queue, as the server gave it."""
    token: int = 0
    begun: bool = False

    @property
    def written(self) -> tuple[str, str, str, str, int]:
        """Fields for the server. A held permit is written as "pause" as long as its body has not started."""
        kind = "pause" if self.kind == "hold" and not self.begun else self.kind
        return kind, self.id, self.tenant, self.spot, self.token


@dataclass(frozen=True, slots=True)
class Step:
    """Changes of one process at one gate: one limit, or one key of it."""

    gate: str
    numbers: Numbers
    epoch: str
    """Version of the server's memory that the changes build on; "" for a full report."""
    ops: Sequence[Op] = ()
    asks_all: bool = False
    """True if the answer must list all permits of the process, because a notification may have been lost."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the server to a step: permits granted, calls queued, calls refused."""

    epoch: str = ""
    """Version of the server's memory; "" if it has forgotten something and needs a full report."""
    other: str = ""
    """Numbers that other processes use for this limit, if they differ; the step was not applied."""
    opens_in: float | None = None
    """Seconds until the passing of time alone may give a waiting call its permit."""
    granted: dict[str, int] = field(default_factory=dict[str, int])
    """Fencing tokens of the new permits, or of all if they were asked for, by permit id."""
    queued: dict[str, str] = field(default_factory=dict[str, str])
    """Places in the queue, by permit id."""
    full: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Number of running and of waiting calls for each refused request, by permit id."""


class LimitsTransport(Connection, Protocol):
    """Connection of one process to a server of limits."""

    async def say(self, steps: Sequence[Step]) -> Sequence[Answer]:
        """Send steps to the server, and return its answer to each.

        Raises:
            AwayError: if the server cannot be reached; the steps may or may not have been applied.
            StorageError: if the server refuses.
        """
        ...

    def heard(self) -> AsyncIterator[tuple[str, str, int]]:
        """Yield permits that were granted after the answer to their request: gate, permit id and token."""
        ...
