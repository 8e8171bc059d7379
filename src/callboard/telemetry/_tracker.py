"""The states of calls, followed from their events: what waits, what runs, since when, and what has ended.

Spans, metrics, logs, recordings and the live view read calls here, so that they cannot come to differ.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, Protocol, TypeVar

from callboard._types import CallPhase

Outcome = Literal["ok", "timeout", "deadline", "rejected", "error", "interrupted", "cancelled"]
"""How a call or a run ended. `timeout`: an attempt took too long. `deadline`: the budget of the whole was spent.
`interrupted`: it asked a person, and is there again when it has its answer."""

FAILURES: tuple[Outcome, ...] = ("timeout", "deadline", "rejected", "error", "cancelled")
"""The outcomes without a result; `interrupted` is none of them, for it goes on."""

Place = Literal["between", "waiting", "running"]
"""Where a call is. `between`: on its way to a queue, or in the pause before another attempt."""


class Told(Protocol):
    """What has to be known of an event: of a `CallEvent`, or of a line of a recording."""

    @property
    def phase(self) -> CallPhase:
        """What happened."""
        ...

    @property
    def number(self) -> int:
        """Tells calls apart."""
        ...

    @property
    def tool(self) -> str:
        """Of the attempt; that of a fallback is another one than that of its call."""
        ...

    @property
    def time(self) -> float:
        """In seconds, on whatever clock."""
        ...

    @property
    def attempt(self) -> int:
        """Which attempt it is about."""
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
        self.waiting: list[tuple[str, float]] = []
        """The attempts that wait for a place: for which tool, and since when."""
        self.running: dict[int, float] = {}
        """The attempts that run, by number, and since when; middleware may start several at once."""
        self.ended = False

    @property
    def place(self) -> Place:
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

    def __call__(self, event: E) -> None:
        """Take in what happened to a call."""
        if event.phase == "begun":
            self.open[event.number] = self.begun(event)
        elif (call := self.open.get(event.number)) is not None:
            _STEPS[event.phase](self, call, event)
        elif event.phase == "attempt_ended" and (call := self._left_behind.get(event.number)) is not None:
            self._attempt_ended(call, event)

    def begun(self, event: E) -> C:
        """Make the record of a call that has begun."""
        raise NotImplementedError

    def queued(self, call: C, event: E) -> None:
        """Hear that an attempt waits for a place."""

    def left_queue(self, call: C, event: E, since: float) -> None:
        """Hear that an attempt waits no more: it gave up, or it starts, which is told next."""

    def started(self, call: C, event: E) -> None:
        """Hear that an attempt runs."""

    def attempt_ended(self, call: C, event: E, since: float) -> None:
        """Hear that an attempt has ended which began then; its call may have ended before it."""

    def noted(self, call: C, event: E) -> None:
        """Hear what was decided about a call."""

    def ended(self, call: C, event: E) -> None:
        """Hear that a call has ended; what it has left waiting or running is still in its record."""

    def _queued(self, call: C, event: E) -> None:
        if not (call.waiting or call.running):
            call.since = event.time
        call.waiting.append((event.tool, event.time))
        self.queued(call, event)

    def _gave_up(self, call: C, event: E) -> None:
        since = _left(call.waiting, event.tool)
        if since is None:
            return
        if not (call.waiting or call.running):
            call.since = event.time
        self.left_queue(call, event, since)

    def _started(self, call: C, event: E) -> None:
        waited_since = _left(call.waiting, event.tool) if call.waiting else None  # not every tool has a queue
        if not call.running:
            call.since = event.time
        call.running[event.attempt] = event.time
        call.attempt = event.attempt
        if waited_since is not None:
            self.left_queue(call, event, waited_since)
        self.started(call, event)

    def _attempt_ended(self, call: C, event: E) -> None:
        since = call.running.pop(event.attempt, None)
        if since is None:
            return
        if not call.running:
            call.since = event.time
            self._left_behind.pop(event.number, None)
        self.attempt_ended(call, event, since)

    def _noted(self, call: C, event: E) -> None:
        self.noted(call, event)

    def _ended(self, call: C, event: E) -> None:
        del self.open[event.number]
        call.ended = True
        if call.running:
            self._left_behind[event.number] = call
        self.ended(call, event)


_STEPS: Mapping[CallPhase, Callable[[CallTracker[Any, Any], Any, Any], None]] = {
    "queued": CallTracker._queued,
    "gave_up": CallTracker._gave_up,
    "started": CallTracker._started,
    "attempt_ended": CallTracker._attempt_ended,
    "noted": CallTracker._noted,
    "ended": CallTracker._ended,
}


def _left(waiting: list[tuple[str, float]], tool: str) -> float | None:
    """Since when the first that waited for this tool did so, which waits no more; `None` if none did."""
    for place, (name, since) in enumerate(waiting):
        if name == tool:
            del waiting[place]
            return since
    return None
