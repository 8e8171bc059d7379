"""The states of calls, followed from their events: what waits, what runs, since when, and what has ended.

Spans, metrics, logs, recordings and the live view read calls here, so that they cannot come to differ.
"""

from collections.abc import Callable, Mapping
from typing import Generic, Literal, Protocol, TypeVar

from callboard._call_events import CallPhase

Outcome = Literal["ok", "timeout", "deadline", "rejected", "error", "interrupted", "cancelled"]
"""How a call or a run ended. `timeout`: an attempt took too long. `deadline`: the budget of the whole was spent.
`interrupted`: it asked a person, and is there again when it has its answer."""

FAILURES: tuple[Outcome, ...] = ("timeout", "deadline", "rejected", "error", "cancelled")
"""The outcomes without a result; `interrupted` is none of them, for it goes on."""

CallPlace = Literal["between", "waiting", "running"]
"""Where a call is. `between`: on its way to a queue, or in the pause before another attempt."""


class Told(Protocol):
    """What has to be known of an event: of a `CallEvent`, or of a line of a recording."""

    @property
    def phase(self) -> CallPhase:
        """The phase of the event that has come: what has just happened to the call."""
        ...

    @property
    def number(self) -> int:
        """The number of the call, by which calls are told apart."""
        ...

    @property
    def tool(self) -> str:
        """The tool of the attempt; that of a fallback is another one than that of its call."""
        ...

    @property
    def time(self) -> float:
        """When it happened, in seconds on whatever clock."""
        ...

    @property
    def attempt(self) -> int:
        """The number of the attempt that it is about."""
        ...


class TrackedCall:
    """A call, from its beginning to its end, as far as events have told of it.

    Args:
        begun: its first event.
    """

    __slots__ = ("attempt", "began", "ended", "number", "running", "since", "tool", "waiting")

    def __init__(self, begun: Told) -> None:
        self.number = begun.number
        self.tool = begun.tool
        """The tool that was asked for, also while another one stands in for it."""
        self.began = self.since = begun.time
        """When it began, and when it came to the place where it is."""
        self.attempt = 0
        """The number of the latest attempt."""
        self.waiting: tuple[tuple[str, float], ...] = ()
        """The attempts that wait for a place: for which tool, and since when."""
        self.running: dict[int, float] = {}
        """The attempts that run, by number, and since when; middleware may start several at once."""
        self.ended = False

    @property
    def place(self) -> CallPlace:
        """Where it is; one that waits and runs at once is running."""
        if self.running:
            return "running"
        return "waiting" if self.waiting else "between"


C = TypeVar("C", bound=TrackedCall)
E = TypeVar("E", bound=Told)


class CallTracker(Generic[C, E]):
    """Follows calls, and says what becomes of each; an observer for `callboard.observe`.

    A subclass makes its own record of each call in `begun`, and overrides what else it wants to hear of. It is told
    when the record has changed already. Events of calls whose beginning nobody has seen are passed over. When a call
    ends, so does what waits; an attempt that it has left behind runs on, and of its end the subclass still hears.
    """

    def __init__(self) -> None:
        self.open: dict[int, C] = {}
        """The calls that have not ended, by number; the first has been there for the longest time."""
        self._left_behind: dict[int, C] = {}
        self._steps: Mapping[CallPhase, Callable[[C, E], None]] = {
            "queued": self._queued,
            "gave_up": self._gave_up,
            "started": self._started,
            "attempt_ended": self._attempt_ended,
            "noted": self.noted,
            "ended": self._ended,
        }

    def __call__(self, event: E) -> None:
        """Take in what happened to a call."""
        if event.phase == "begun":
            self.open[event.number] = self.begun(event)
        elif (call := self.open.get(event.number)) is not None:
            self._steps[event.phase](call, event)
        elif event.phase == "attempt_ended" and (call := self._left_behind.get(event.number)) is not None:
            self._attempt_ended(call, event)

    def begun(self, event: E) -> C:
        """Make the record of a call that has begun."""
        raise NotImplementedError

    def queued(self, call: C, event: E) -> None:
        """Hear that an attempt waits for a place."""

    def gave_up(self, call: C, event: E, since: float) -> None:
        """Hear that an attempt waits no more, and did so since then in vain."""

    def started(self, call: C, event: E, waited_since: float | None) -> None:
        """Hear that an attempt runs; it has waited for its place since then, `None` if there was no queue."""

    def attempt_ended(self, call: C, event: E, since: float) -> None:
        """Hear that an attempt has ended which began then; its call may have ended before it."""

    def noted(self, call: C, event: E) -> None:
        """Hear what was decided about a call."""

    def ended(self, call: C, event: E) -> None:
        """Hear that a call has ended; what it has left waiting or running is still in its record."""

    def _queued(self, call: C, event: E) -> None:
        if not (call.waiting or call.running):
            call.since = event.time
        call.waiting = (*call.waiting, (event.tool, event.time))
        self.queued(call, event)

    def _gave_up(self, call: C, event: E) -> None:
        since = _leave(call, event.tool)
        if since is None:
            return
        if not (call.waiting or call.running):
            call.since = event.time
        self.gave_up(call, event, since)

    def _started(self, call: C, event: E) -> None:
        waited_since = _leave(call, event.tool) if call.waiting else None  # not every tool has a queue
        if not call.running:
            call.since = event.time
        call.attempt = event.attempt
        call.running[event.attempt] = event.time
        self.started(call, event, waited_since)

    def _attempt_ended(self, call: C, event: E) -> None:
        since = call.running.pop(event.attempt, None)
        if since is None:
            return
        if not call.running:
            call.since = event.time
            if call.ended:
                del self._left_behind[call.number]
        self.attempt_ended(call, event, since)

    def _ended(self, call: C, event: E) -> None:
        del self.open[event.number]
        call.ended = True
        if call.running:
            self._left_behind[event.number] = call
        self.ended(call, event)


def _leave(call: TrackedCall, tool: str) -> float | None:
    """Let the first attempt that waits for this tool wait no more; since when it did, `None` if there is none."""
    waiting = call.waiting
    for place, (name, since) in enumerate(waiting):
        if name == tool:
            call.waiting = waiting[:place] + waiting[place + 1 :] if len(waiting) > 1 else ()
            return since
    return None
