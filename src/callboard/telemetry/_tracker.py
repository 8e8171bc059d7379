"""State and outcome of each call and run, derived from its events.

Spans, metrics, logs, recordings and the live view all build on this tracker, so they agree about every call.
"""

import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Generic, Literal, Protocol, TypeVar

from callboard._calls._blocks import has_to_be_entered
from callboard._calls._observers import Observers, observe_in_context
from callboard._records._events import CallEvent, CallPhase, CallPlace, RunEvent
from callboard.exceptions import (
    CallCancelledError,
    CallRejectedError,
    CallTimeoutError,
    DeadlineExceededError,
    RunDeadlineExceededError,
)

Outcome = Literal["ok", "timeout", "deadline", "rejected", "error", "interrupted", "cancelled"]
"""Outcome of a call or a run. `timeout`: an attempt took too long. `deadline`: the budget of the whole was spent.
`interrupted`: the call asked a person a question; it resumes with the answer."""

FAILURES: tuple[Outcome, ...] = ("timeout", "deadline", "rejected", "error", "cancelled")
"""Outcomes of a call or run that count as failures. `interrupted` is not one, because the call resumes."""


class _TrackedEvent(Protocol):
    """Protocol of the events that a `CallTracker` reads: a `CallEvent`, or a line of a recording."""

    @property
    def phase(self) -> CallPhase: ...
    @property
    def number(self) -> int: ...
    @property
    def tool(self) -> str: ...
    @property
    def time(self) -> float: ...
    @property
    def attempt(self) -> int: ...


class TrackedCall:
    """State of one call, derived from the events of the call so far.

    Args:
        first_event: first event of the call.
    """

    __slots__ = ("attempt", "began", "ended", "number", "running", "since", "tool", "waiting")

    def __init__(self, first_event: _TrackedEvent) -> None:
        self.number = first_event.number
        self.tool = first_event.tool
        """Name of the called tool, also while a fallback runs in its place."""
        self.began = self.since = first_event.time
        """Times when the call began (`began`), and when it entered its present state (`since`)."""
        self.attempt = 0
        """Number of the latest attempt; 0 before the first one."""
        self.waiting: deque[tuple[str, float]] = deque()
        """Attempts that wait in a queue, each as the name of its tool and the time at which it joined the queue."""
        self.running: dict[int, float] = {}
        """Start times of running attempts by number; middleware may run several at once."""
        self.ended = False

    @property
    def place(self) -> CallPlace:
        """Present state of the call. A call with both waiting and running attempts counts as running."""
        if self.running:
            return "running"
        return "waiting" if self.waiting else "between"


C = TypeVar("C", bound=TrackedCall)
E = TypeVar("E", bound=_TrackedEvent)


class CallTracker(Generic[C, E]):
    """Base class of observers that follow calls; pass an instance to `callboard.observe`.

    A subclass makes its record of each call in `on_begin`, and overrides the other hooks that it needs. A hook runs
    after the record was updated. Events of calls that began before the tracker was active are ignored. Queued attempts
    end with their call, without a hook. A running attempt may outlive its call; `on_attempt_end` is then called later.
    """

    def __init__(self) -> None:
        self.open: dict[int, C] = {}
        """Records of the calls that have not ended, by number, the oldest first."""
        # Ended calls with attempts that still run, such as abandoned threads. Their last attempt's end removes them.
        self._ended_calls: dict[int, C] = {}

    def __call__(self, event: E) -> None:
        """Handle an event of a call: update the record of the call, and then call the hook for the event's phase."""
        number = event.number
        call = self.open.get(number)
        if event.phase == "begun":
            self.open[number] = self.on_begin(event)
            return
        if event.phase == "attempt_ended":
            self._record_attempt_end(call or self._ended_calls.get(number), event)
            return
        if call is None:
            return
        match event.phase:
            case "queued":
                if not (call.waiting or call.running):
                    call.since = event.time
                call.waiting.append((event.tool, event.time))
                self.on_queue(call, event)
            case "started":
                # A tool without a limit has no queue.
                waited_since = _leave_queue(call, event.tool) if call.waiting else None
                if not call.running:
                    call.since = event.time
                call.attempt = event.attempt
                call.running[event.attempt] = event.time
                self.on_start(call, event, waited_since)
            case "gave_up":
                since = _leave_queue(call, event.tool)
                if since is not None:
                    if not (call.waiting or call.running):
                        call.since = event.time
                    self.on_give_up(call, event, since)
            case "noted":
                self.on_note(call, event)
            case "ended":
                del self.open[number]
                call.ended = True
                if call.running:
                    self._ended_calls[number] = call
                self.on_end(call, event)

    def on_begin(self, event: E) -> C:
        """Return a new record for a call that has begun."""
        raise NotImplementedError

    def on_queue(self, call: C, event: E) -> None:
        """Handle the start of an attempt's wait in a queue."""

    def on_give_up(self, call: C, event: E, since: float) -> None:
        """Handle an attempt that left its queue without a permit to run; `since` is the time when it was queued."""

    def on_start(self, call: C, event: E, waited_since: float | None) -> None:
        """Handle the start of an attempt; `waited_since` is the time when it joined a queue, `None` without a queue."""

    def on_attempt_end(self, call: C, event: E, since: float) -> None:
        """Handle the end of an attempt that began at the time `since`; its call may have ended before."""

    def on_note(self, call: C, event: E) -> None:
        """Handle a note of a call: a decision about the call, or a progress report of its tool."""

    def on_end(self, call: C, event: E) -> None:
        """Handle the end of a call; its record still lists the attempts that wait or run."""

    def _record_attempt_end(self, call: C | None, event: E) -> None:
        since = None if call is None else call.running.pop(event.attempt, None)
        if call is None or since is None:
            return
        if not call.running:
            call.since = event.time
            if call.ended:
                del self._ended_calls[call.number]
        self.on_attempt_end(call, event, since)


class ObserverSet:
    """Base class of a set of observers that together make one kind of output, such as spans."""

    observers: Observers

    @has_to_be_entered("with observers.on():")
    @contextmanager
    def on(self) -> Generator[None]:
        """Observe only the tool calls, agent runs and actor calls that are started inside the `with` block."""
        with observe_in_context(self.observers):
            yield


R = TypeVar("R")


class RunTracker(Generic[R]):
    """Base class of observers that follow runs of agents, as `CallTracker` follows calls.

    A subclass makes its record of each run in `on_begin`. Events of runs that began before the tracker are ignored.
    """

    def __init__(self) -> None:
        self.open: dict[int, R] = {}

    def __call__(self, event: RunEvent) -> None:
        """Handle an event of a run: call the hook for its phase, with the record of the run."""
        number = event.run.number
        if event.phase == "begun":
            self.open[number] = self.on_begin(event)
            return
        if (run := self.open.get(number)) is None:
            return
        match event.phase:
            case "read":
                self.on_message(run, event)
            case "asked":
                self.on_request(run, event)
            case "noted":
                self.on_note(run, event)
            case "answered":
                self.on_reply(run, event)
            case "ended":
                del self.open[number]
                self.on_end(run, event)

    def on_begin(self, event: RunEvent) -> R:
        """Return a new record for a run that has begun."""
        raise NotImplementedError

    def on_message(self, run: R, event: RunEvent) -> None:
        """React to a message that a run has read from its inbox; by default, do nothing."""

    def on_request(self, run: R, event: RunEvent) -> None:
        """React to a request that a run sends to its model; by default, do nothing."""

    def on_note(self, run: R, event: RunEvent) -> None:
        """React to a decision of a middleware about a request of a run; by default, do nothing."""

    def on_reply(self, run: R, event: RunEvent) -> None:
        """React to the model's reply to a run's request, or to the failure of the request; by default, do nothing."""

    def on_end(self, run: R, event: RunEvent) -> None:
        """React to the end of a run; by default, do nothing."""


def _leave_queue(call: TrackedCall, tool: str) -> float | None:
    """Remove the first waiting attempt of a tool from a call; return when it was queued, or `None` if none waits."""
    # Attempts that wait have no number yet, so they are told apart by tool only, first in, first out.
    for position, (name, since) in enumerate(call.waiting):
        if name == tool:
            del call.waiting[position]
            return since
    return None


# Outcomes, and error types that reveal nothing of an error's text.


def outcome_of(error: BaseException | None) -> Outcome:
    """Return the outcome of a call, attempt or run, such as "ok" or "timeout", from the error that ended it.

    Args:
        error: error that ended it; `None` if there was none.
    """
    if error is None:
        return "ok"
    # Not imported: it takes a second, recordings are read without it, and who raised such an error has imported it.
    langgraph = sys.modules.get("langgraph.errors")
    if langgraph is not None and isinstance(error, langgraph.GraphBubbleUp):
        # A Command for the parent graph is a result.
        return "ok" if isinstance(error, langgraph.ParentCommand) else "interrupted"
    if isinstance(error, CallTimeoutError):
        return "timeout"
    if isinstance(error, (DeadlineExceededError, RunDeadlineExceededError)):
        return "deadline"
    if isinstance(error, CallRejectedError):
        return "rejected"
    if isinstance(error, CallCancelledError) or is_cancellation(error):
        return "cancelled"
    return "error"


def outcome_of_run(event: RunEvent) -> Outcome:
    """Return the outcome of a run from its last event; a run with open questions is interrupted, without an error."""
    return "interrupted" if event.questions else outcome_of(event.error)


def is_failure(error: BaseException) -> bool:
    """Return whether an error counts as a failure in telemetry; an interrupt does not."""
    return outcome_of(error) in FAILURES


def is_cancellation(error: BaseException) -> bool:
    """Return whether an error is the cancellation of asyncio or trio."""
    # By name, because trio may not be installed, and the running loop may be another one.
    return not isinstance(error, Exception) and type(error).__name__ in ("CancelledError", "Cancelled")


def error_type(error: BaseException) -> str:
    """Return the value of the attribute `error.type` for an error: the outcome, or the name of the error's class."""
    # There are few different values, and none contains the error's text, which may be confidential.
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    outcome = outcome_of(error)
    if outcome not in ("error", "interrupted"):
        return outcome
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


TOOL_ERROR = "tool_error"
"""Error type of a call whose tool returned an error message, without raising an error; MCP's conventions name it."""


def failure_of(event: CallEvent) -> str | None:
    """Return the value of `error.type` for a call that failed for its model, from its last event; else `None`.

    A call whose error became a message has failed, too: the model reads an error, and nobody else would see it.
    """
    if event.result is not None:
        # Middleware may have replaced the message about an error by another result.
        if not _is_error_message(event.result, event.call_id):
            return None
        return TOOL_ERROR if event.error is None else error_type(event.error)
    return error_type(event.error) if event.error is not None and is_failure(event.error) else None


def _is_error_message(result: object, call_id: str | None) -> bool:
    from langchain_core.messages import ToolMessage
    from langgraph.types import Command

    if isinstance(result, list):
        return any(_is_error_message(output, call_id) for output in result)
    if isinstance(result, Command):
        updates = result.update.values() if isinstance(result.update, dict) else [result.update]
        return any(_is_error_message(update, call_id) for update in updates if isinstance(update, list))
    # A Command may repeat messages of other calls.
    return isinstance(result, ToolMessage) and result.status == "error" and result.tool_call_id == call_id
