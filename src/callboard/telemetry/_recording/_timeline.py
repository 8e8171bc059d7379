"""Contents of a recording: runs, tool calls, attempts and asks (actor calls), each with its times.

Times are seconds since the header of the part. An `end` of `None` means: still open when the recording ended.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from callboard.telemetry._tracker import FAILURES

FORMAT = "callboard/recording/1"
"""Name and version of the format of recordings, in the header of each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Period in which an attempt of a call waited in a queue."""

    start: float
    end: float | None = None
    error: str | None = None
    """Type of the error that ended the wait; `None` if the attempt got a permit of the limit, or still waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttempt:
    """Attempt of a call: one execution of the tool's function."""

    number: int
    start: float
    end: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Note about a call: a decision of a middleware or of the supervision, or a progress report of a tool."""

    time: float
    kind: str
    """Kind of the note in one word, such as "retry" or "progress"."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    message: str | None = None
    """Text of a progress report; `None` if arguments and results were not captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAsk:
    """Ask in a recording: a call of an actor's handler."""

    number: int
    actor: str
    handler: str
    start: float
    """Time when the ask arrived in the mailbox."""
    handler_start: float | None = None
    """Time when the handler began; `None` if it did not begin."""
    end: float | None = None
    call: int | None = None
    """Number of the tool call that made the ask; `None` if other code made it."""
    ahead: int = 0
    """Number of asks that were before this one in the mailbox when it arrived."""
    outcome: str | None = None
    error: str | None = None
    key: str | None = None
    """Key of the actor; `None` if the actor has no key, or if arguments and results were not captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """Tool call in a recording. It starts when its task starts, before any wait in a queue."""

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
    """Seconds that the call waited in queues, in total over all attempts."""
    resumes: str | None = None
    waits: tuple[Wait, ...] = ()
    attempts: tuple[RecordedAttempt, ...] = ()
    notes: tuple[Note, ...] = ()
    asks: tuple[RecordedAsk, ...] = ()
    """Asks of actors that the call made."""
    args: Any = None
    result: Any = None
    cancelled_by: str | None = None
    """Who cancelled the call alone: "application", by `cancel()`, or "tool", by itself; `None` if nobody did."""
    reason: str | None = None
    """Reason that the application gave to `cancel()`; `None` if arguments and results were not captured."""

    @property
    def failed(self) -> bool:
        """`True` if the call ended in a failure; an interrupted call has not failed."""
        return self.outcome in FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Request to a model in a recording, with its times, error, token counts and reply."""

    start: float
    end: float | None = None
    model: str | None = None
    error: str | None = None
    calls: int = 0
    """Number of tool calls in the model's reply."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    reply: Any = None
    """Reply as a dict that LangChain reads as a message; `None` if arguments and results were not captured."""
    response: Any = None
    """Structured response in plain JSON types, of the last request of an agent with a `response_format`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMessage:
    """Message that a run had received, from a person or from a background call, and then read."""

    time: float
    point: str = ""
    """Point of the run: "turn" before a turn, "end" where it would have ended, "input" if an earlier run got it."""
    requests: int = 0
    """Number of model requests of the run before it read the message."""
    background: str | None = None
    """Handle of the background call whose result the message is; `None` for the message of a person."""
    message: Any = None
    """Message as a dict that LangChain reads as a message; `None` if arguments and results were not captured."""

    @property
    def where(self) -> str:
        """Point of the run in words."""
        return {"turn": "before a turn", "end": "where the run would end", "input": "with the input"}.get(
            self.point, self.point
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """Run of an agent, with its requests to models and the messages that it has read."""

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
    question_ids: tuple[str, ...] = ()
    """Ids of the open questions at the end of the run; empty if arguments and results were not captured."""
    requests: tuple[ModelRequest, ...] = ()
    messages: tuple[ReadMessage, ...] = ()
    """Messages that the run has read while it worked, without those of its input."""
    input: Any = None
    """Input of the run, with messages as dicts; `None` if it was a command, if it was empty, or if not captured."""
    command: Any = None
    """Input of the run if it was a `Command`: a dict of its fields `resume`, `update` and `goto`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorChange:
    """Change of an actor: it was started, restarted, stopped or evicted, or it failed or died."""

    time: float
    actor: str
    phase: str
    error: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """Closing line of a recording: numbers of events, lost events and bytes, and the time spent on recording."""

    events: int = 0
    lost: int = 0
    bytes: int = 0
    overhead: float = 0.0
    """Seconds that recording took in the threads of event loops."""
    per_event: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part of a recording file, from one header line to the next: the events of one recorder."""

    started: datetime | None
    end: float
    """Time of the last event."""
    runs: tuple[RecordedRun, ...]
    calls: tuple[RecordedCall, ...]
    """Calls in the order in which they began."""
    asks: tuple[RecordedAsk, ...] = ()
    """Asks of actors, made by tool calls or by other code, in the order in which they began."""
    lives: tuple[ActorChange, ...] = ()
    """Starts, restarts, failures and ends of actors, in order."""
    callboard: str = ""
    python: str = ""
    pid: int = 0
    captures: bool = False
    """`True` if arguments and results were captured."""
    lost: int = 0
    """Number of events that are missing from the file because they could not be written."""
    closing: Closing | None = None
    """Closing line of the recorder; `None` if the process or the disk failed before it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Recording file with its parts, one for each recorder that wrote to the file."""

    path: Path
    parts: tuple[Part, ...]

    def calls(self) -> Iterator[RecordedCall]:
        """Yield the calls of all parts, one part after the other."""
        for part in self.parts:
            yield from part.calls
