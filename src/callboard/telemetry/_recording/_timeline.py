"""Records of a recording: runs, calls, attempts and asks of actors, each with its times.

Times are seconds since the header of the part. An `end` of `None` means: still open when the recording ended.
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
    """Type of the error that ended the wait without a permit of the limit; `None` if the attempt got one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttempt:
    """Attempt: one execution of a call's body."""

    number: int
    start: float
    end: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Decision of a middleware or of the supervision, or a progress report of a tool."""

    time: float
    what: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    message: str | None = None
    """Text of a progress report, if arguments and results were captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAsk:
    """Ask of an actor: a call of one of its handlers."""

    number: int
    actor: str
    handler: str
    start: float
    """Time of arrival in the mailbox."""
    taken: float | None = None
    """Time when the handler began."""
    end: float | None = None
    call: int | None = None
    """Number of the tool call that asked; `None` for asks from other code."""
    ahead: int = 0
    """Number of asks that were ahead in the mailbox."""
    outcome: str | None = None
    error: str | None = None
    key: str | None = None
    """Key of a keyed actor, if arguments and results were captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """Tool call, from the start of its task."""

    number: int
    batch: int
    tool: str
    id: str | None
    start: float
    run: int | None = None
    """Number of the agent run that made the call; `None` without an agent."""
    end: float | None = None
    outcome: str | None = None
    error: str | None = None
    waited: float = 0.0
    """Seconds in queues, in total over all attempts."""
    resumes: str | None = None
    waits: tuple[Wait, ...] = ()
    attempts: tuple[RecordedAttempt, ...] = ()
    notes: tuple[Note, ...] = ()
    asks: tuple[RecordedAsk, ...] = ()
    """Asks of actors made by the call."""
    args: Any = None
    result: Any = None

    @property
    def failed(self) -> bool:
        """`True` if the call ended in a failure; an interrupted call has not failed."""
        return self.outcome in FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Request to a model with facts of its reply."""

    start: float
    end: float | None = None
    model: str | None = None
    error: str | None = None
    calls: int = 0
    """Number of tool calls in the reply."""
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """Run of an agent."""

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
    """Change in the life of an actor: started, restarted, failed, died, stopped or evicted."""

    time: float
    actor: str
    what: str
    error: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """Closing line of a recorder: its counts and costs."""

    events: int = 0
    lost: int = 0
    bytes: int = 0
    overhead: float = 0.0
    """Seconds that recording took in the threads of event loops."""
    per_event: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Content of a recording from one header line to the next: the events of one recorder."""

    started: datetime | None
    end: float
    """Time of the last event."""
    runs: tuple[RecordedRun, ...]
    calls: tuple[RecordedCall, ...]
    """Calls in the order in which they began."""
    asks: tuple[RecordedAsk, ...] = ()
    """Asks of actors by tool calls and by other code, in the order in which they began."""
    lives: tuple[ActorChange, ...] = ()
    """Changes in the lives of actors, in order."""
    callboard: str = ""
    python: str = ""
    pid: int = 0
    captures: bool = False
    """`True` if arguments and results were captured."""
    lost: int = 0
    """Number of events that are missing because they could not be written."""
    closing: Closing | None = None
    """Closing line; `None` if the process or the disk failed before the line was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Recording file with its parts, one for each recorder that wrote to the file."""

    path: Path
    parts: tuple[Part, ...]

    def calls(self) -> Iterator[RecordedCall]:
        """Yield the calls of all parts, one part after the other."""
        for part in self.parts:
            yield from part.calls
