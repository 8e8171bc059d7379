"""What observers are told of calls, and of the runs of agents."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from callboard._types import ToolCallLike

_NOTHING: Mapping[str, object] = MappingProxyType({})

CallPhase = Literal["begun", "queued", "gave_up", "started", "attempt_ended", "noted", "ended"]
"""`begun`: the call is in its task. `queued`: it waits for a place. `gave_up`: it waits no more, and has none.
`started`: a body starts. `attempt_ended`: it ended. `noted`: something was decided about it. `ended`: the call ended.

All are told in the task of the call, or of the attempt, that they are about; progress that had to wait, or came from
another thread, in a task beside the calls of its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """One run of an agent, as observers know it."""

    number: int
    """Tells runs apart, in this process."""
    agent: str
    run_id: str
    thread_id: str | None = None
    namespace: str = ""
    """Of the agent within the graphs around it."""
    resumes: str | None = None
    """What an observer left on the run that this one goes on with; see `Observers.mark`."""


class CallEvent(NamedTuple):
    """One thing that happened to one call; what observers see.

    Times are seconds on the clock of the event loop that runs the call. To be made by name: fields may be added.
    """

    # A tuple, because each call makes four or more: a frozen dataclass takes four times as long to be made.

    phase: CallPhase
    tool: str
    call_id: str | None
    time: float
    number: int = 0
    """Tells calls apart, in this process; models number theirs anew."""
    batch: int = 0
    """Tells batches apart, in this process."""
    attempt: int = 0
    """Which attempt this is about, from 1; 0 while none has started."""
    queue_wait: float = 0.0
    """Seconds that the attempt which just started had waited, or all of them together in `ended`."""
    error: BaseException | None = None
    """Why the attempt or the call ended without a result; also an error that became a message."""
    what: str = ""
    """What was noted, in one word, such as "retry"."""
    facts: Mapping[str, object] = _NOTHING
    """More about what was noted; never an argument or a result."""
    message: str | None = None
    """What a tool said of its progress, where that was noted. It may have arguments in it, and is not for what leaves
    the process."""
    call: ToolCallLike | None = None
    """What the model asked for, in `begun`. Its arguments are not for what leaves the process."""
    description: str | None = None
    """In `begun`: what the tool says of itself."""
    result: object = None
    """What the call came to, in `ended`: a ToolMessage, a Command, or a list of them. As above."""
    resumes: str | None = None
    """In `begun`: what an observer left on the call when it was interrupted or its process killed."""
    run: RunInfo | None = None
    """The agent's run that made the call."""

    def __repr__(self) -> str:
        """Without what the call was asked, what it said and what it came to: somebody may log it."""
        told = {name: value for name, value in self._asdict().items() if name not in ("call", "message", "result")}
        return f"CallEvent({', '.join(f'{name}={value!r}' for name, value in told.items())})"


RunPhase = Literal["begun", "asked", "answered", "ended"]
"""`begun`: the run is in its task. `asked`: the model is. `answered`: it did, or failed. `ended`: the run ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One thing that happened to one run of an agent; what observers of runs see.

    Times are seconds on the clock of the event loop that runs the agent.
    """

    phase: RunPhase
    run: RunInfo
    time: float
    error: BaseException | None = None
    """Why the run ended early, or the model did not answer."""
    questions: int = 0
    """In `ended`: how many questions the run waits with."""
    model: object = field(default=None, repr=False)
    """In `asked` and `answered`: the model, with what is bound to it; `None` if it is chosen for each step."""
    given: object = field(default=None, repr=False)
    """The input of the run (`begun`) or the messages for the model (`asked`). Not for what leaves the process."""
    result: object = field(default=None, repr=False)
    """The state (`ended`) or the model's reply (`answered`). As above."""


Observer = Callable[[CallEvent], None]
"""Called in the event loop's thread, at once and often: it must be quick, and never fails a call."""

RunObserver = Callable[[RunEvent], None]
"""Called with each event of a run."""
