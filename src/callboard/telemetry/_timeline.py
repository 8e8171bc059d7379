"""What a recording says, as records: runs, calls, attempts, asks of actors, each with its times.

Times are seconds since the header of their part. What has no end was open when the recording ended.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from callboard.telemetry._tracker import FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The wait of an attempt in a queue."""

    start: float
    end: float | None = None
    error: str | None = None
    """Why it ended without a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttempt:
    """One execution of a call's body."""

    number: int
    start: float
    end: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a middleware, or the supervision, decided; or what a tool said of its progress."""

    time: float
    what: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    message: str | None = None
    """Of progress, where it was captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAsk:
    """An ask of an actor: a call of one of its handlers."""

    number: int
    actor: str
    handler: str
    start: float
    """When it came into the mailbox."""
    taken: float | None = None
    """When its handler began."""
    end: float | None = None
    call: int | None = None
    """The number of the call that asked, if one did."""
    ahead: int = 0
    """How many asks the actor had before it."""
    outcome: str | None = None
    error: str | None = None
    key: str | None = None
    """Which of several actors it was, where that was captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call, from the moment that its task began."""

    number: int
    batch: int
    tool: str
    id: str | None
    start: float
    run: int | None = None
    """The number of the run that made it, if an agent did."""
    end: float | None = None
    outcome: str | None = None
    error: str | None = None
    waited: float = 0.0
    """Seconds in queues, all of them together."""
    resumes: str | None = None
    waits: tuple[Wait, ...] = ()
    attempts: tuple[RecordedAttempt, ...] = ()
    notes: tuple[Note, ...] = ()
    asks: tuple[RecordedAsk, ...] = ()
    """Of actors, by the call or within it."""
    args: Any = None
    result: Any = None

    @property
    def failed(self) -> bool:
        """Whether it ended without a result, for good."""
        return self.outcome in FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request to a model, and what came back."""

    start: float
    end: float | None = None
    model: str | None = None
    error: str | None = None
    calls: int = 0
    """How many calls the model asked for."""
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run of an agent."""

    number: int
    start: float
    end: float | None = None
    agent: str = ""
    thread: str | None = None
    run_id: str | None = None
    namespace: str = ""
    resumes: str | None = None
    outcome: str | None = None
    error: str | None = None
    questions: int = 0
    requests: tuple[ModelRequest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorChange:
    """What happened in the life of an actor: it started, died, was restarted, evicted ..."""

    time: float
    actor: str
    what: str
    error: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What a recorder said of itself when it was closed."""

    events: int = 0
    lost: int = 0
    bytes: int = 0
    overhead: float = 0.0
    """Seconds that recording took in the event loop's thread."""
    per_event: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one recorder wrote, from its header on."""

    started: datetime | None
    end: float
    """When its last event happened."""
    runs: tuple[RecordedRun, ...]
    calls: tuple[RecordedCall, ...]
    """In the order in which they began."""
    asks: tuple[RecordedAsk, ...] = ()
    """Of actors, by calls and by others; in the order in which they began."""
    lives: tuple[ActorChange, ...] = ()
    """What happened to actors."""
    callboard: str = ""
    python: str = ""
    pid: int = 0
    captures: bool = False
    """Whether arguments and results are in it."""
    lost: int = 0
    """Events that are not in it because they could not be written."""
    closing: Closing | None = None
    """`None` if the part was cut off: its process ended early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A file of recorded parts."""

    path: Path
    parts: tuple[Part, ...]

    def calls(self) -> Iterator[RecordedCall]:
        """The calls of all parts, one part after the other."""
        for part in self.parts:
            yield from part.calls
