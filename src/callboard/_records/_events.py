"""Events that observers receive about tool calls, agent runs and actors."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from callboard._records._policies import ToolCallLike

_NOTHING: Mapping[str, object] = MappingProxyType({})

# Calls and runs


CallPhase = Literal["begun", "queued", "gave_up", "started", "attempt_ended", "noted", "ended"]
"""Phase of a call. `begun`: the call's task runs. `queued`: the call waits for a permit to start. `gave_up`: the call
stopped waiting without a permit. `started`: an attempt runs the tool's function. `attempt_ended`: the attempt ended.
`noted`: a decision about the call, such as a retry. `ended`: the call ended.

Observers are called in the task of the call or of the attempt. A progress report that was held back, or that came from
another thread, is sent from a separate task of the batch."""


CallPlace = Literal["between", "waiting", "running"]
"""State of a call that has not ended. `waiting`: an attempt waits for a permit. `running`: an attempt runs the tool's
function. `between`: no attempt waits or runs, such as in the pause before a retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Identity of one run of an agent, for observers."""

    number: int
    """Number of the run, unique in this process."""
    agent: str
    run_id: str
    thread_id: str | None = None
    namespace: str = ""
    """LangGraph's checkpoint namespace of the agent, which names the graphs around the agent."""
    resumes: str | None = None
    """Text that an observer stored with the earlier run that this run continues; see `Observers.mark`."""


class CallEvent(NamedTuple):
    """Event that observers receive when a tool call changes state (for example, starts or ends) or reports progress.

    Times are seconds on the clock of the event loop that runs the call. Construct it with keyword arguments only:
    fields may be added.
    """

    # A tuple, because each call creates four or more events, and a frozen dataclass takes four times as long to create.

    phase: CallPhase
    tool: str
    call_id: str | None
    time: float
    number: int = 0
    """Number of the call, unique in this process. The model's `call_id` may repeat from reply to reply."""
    batch: int = 0
    """Number of the batch, unique in this process."""
    attempt: int = 0
    """Number of the attempt, from 1; 0 before the first attempt."""
    queue_wait: float = 0.0
    """Seconds that the attempt waited for its permits, in `started` and `gave_up`; in `ended`, the sum over all
    attempts."""
    error: BaseException | None = None
    """Error of the attempt or the call, even if the error was turned into a message for the model."""
    note: str = ""
    """Kind of the note in a `noted` event, in one word, such as "retry"."""
    facts: Mapping[str, object] = _NOTHING
    """Details of the decision in a `noted` event; never an argument or a result."""
    message: str | None = None
    """Progress message of the tool, in `noted`. It may contain arguments: by default, exporters must not send it out of
    the process."""
    call: ToolCallLike | None = None
    """Tool call as the model wrote it, in `begun`. By default, exporters must not send its arguments out of the
    process."""
    description: str | None = None
    """Description of the tool, in `begun`."""
    result: object = None
    """Result of the call, in `ended`: a ToolMessage, a Command, or a list of them. By default, exporters must not send
    it out of the process."""
    resumes: str | None = None
    """Text that an observer stored with the call, before the call was interrupted or its process killed; in `begun`."""
    run: RunInfo | None = None
    """Run of the agent that made the call."""

    def __repr__(self) -> str:
        """Return a representation without arguments, progress message and result, which may be confidential."""
        shown_fields = {
            name: value for name, value in self._asdict().items() if name not in ("call", "message", "result")
        }
        return f"CallEvent({', '.join(f'{name}={value!r}' for name, value in shown_fields.items())})"


RunPhase = Literal["begun", "read", "asked", "noted", "answered", "ended"]
"""Phase of a run. `begun`: the run's task runs. `read`: the run has read a message that it received while it worked.
`asked`: the model is called. `noted`: a middleware has decided about the request, such as to repeat it. `answered`: the
model replied or failed. `ended`: the run ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Event that observers receive when an agent's run begins, reads a message or ends, and about its model requests.

    Times are seconds on the clock of the event loop that runs the agent.
    """

    phase: RunPhase
    run: RunInfo
    time: float
    error: BaseException | None = None
    """Error that ended the run (`ended`), or that the model raised (`answered`)."""
    questions: int = 0
    """Number of open questions of the run, in `ended`."""
    question_ids: tuple[str, ...] = ()
    """Ids of the open questions of the run, in `ended`, in the order in which the state has them."""
    model: object = field(default=None, repr=False)
    """Model with its bound tools and options, in `asked` and `answered`; `None` if the agent chooses the model at each
    step."""
    input: object = field(default=None, repr=False)
    """Input of the run (`begun`), the message (`read`), or messages for the model (`asked`). By default, exporters must
    not send it out of the process."""
    result: object = field(default=None, repr=False)
    """State of the run (`ended`), or reply of the model (`answered`). By default, exporters must not send it out of the
    process."""
    note: str = ""
    """Kind of the decision, in one word, such as "retry", in `noted`."""
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    """Details of the decision, in `noted`. In `read`: the `point` of the run, which is "turn" before a turn, "end"
    where the run would have ended, or "input" for a message that an earlier run has left unread; and for the result of
    a background call, the handle of the call as `background`."""


Observer = Callable[[CallEvent], None]
"""Callback for events of calls. It runs synchronously and often in the event loop's thread, so it must return quickly.
An error that it raises does not fail the call."""

RunObserver = Callable[[RunEvent], None]
"""Callback for events of runs; like an `Observer`, it must return quickly."""


# Asks and life cycles of actors


AskPhase = Literal["begun", "taken", "ended"]
"""Phase of an ask, which is a request to an actor. `begun`: the ask is in the mailbox. `taken`: its handler starts.
`ended`: the caller has the reply, or an error."""

ActorPhase = Literal["started", "restarted", "failed", "died", "stopped", "evicted"]
"""Phase of an actor's life cycle. `started`: the actor runs. `restarted`: it runs again, after it died or was replaced.
`failed`: it did not start. `died`: it ended by itself. `stopped`: it was shut down in order. `evicted`: it is removed,
because it was idle or because another actor needs its place."""


class AskEvent(NamedTuple):
    """Event that observers receive when an ask (a request to an actor) is queued, starts or ends.

    Observers are called in the event loop of the caller; times are seconds on that loop's clock. Construct it with
    keyword arguments only: fields may be added.
    """

    phase: AskPhase
    actor: str
    """Name of the actor as a child of its supervisor. All keyed actors of one child share this name."""
    handler: str
    time: float
    number: int
    """Number of the ask, unique among asks and calls of this process."""
    key: Hashable = None
    """Key of a keyed actor. It may contain an argument of the call: by default, exporters must not send it out of the
    process."""
    call: int | None = None
    """Number of the tool call that sent the ask, directly or from nested code; `None` outside of a call."""
    ahead: int = 0
    """Number of asks that were queued or running at the actor when this ask began."""
    waited: float = 0.0
    """Seconds that the ask waited: from `begun` to the start of the handler, or to the end of an ask that never
    started; set in `taken` and `ended`."""
    error: BaseException | None = None
    """Error that the caller got in place of a reply; set in `ended`."""


class ActorEvent(NamedTuple):
    """Event that observers receive when an actor starts or fails to start, dies, restarts, stops, or is evicted.

    Observers are called in the event loop of the actor; times are seconds on that loop's clock. Construct it with
    keyword arguments only: fields may be added.
    """

    phase: ActorPhase
    actor: str
    """Name of the actor as a child of its supervisor. All keyed actors of one child share this name."""
    time: float
    number: int = 0
    """Number of the incarnation (one life between two restarts), unique in this process."""
    key: Hashable = None
    """Key of a keyed actor. It may contain an argument of a call: by default, exporters must not send it out of the
    process."""
    error: BaseException | None = None
    """Cause of the death or of the failed start. In `restarted`, the cause of the death of the previous incarnation."""
    asks: tuple[int, ...] = ()
    """Numbers of the asks that wait for this actor, or until there is room to start the actor. Asks without an observer
    are not listed."""


ActorObserver = Callable[[AskEvent | ActorEvent], None]
"""Callback for events of actors. It runs synchronously in the event loop's thread, so it must return quickly."""
