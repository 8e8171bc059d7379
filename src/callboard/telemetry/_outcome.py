"""How a call or a run ended, in one word; and what to call its error where nothing of its text may leave."""

from langgraph.errors import GraphBubbleUp, ParentCommand

from callboard._call_events import RunEvent
from callboard.exceptions import (
    CallCancelledError,
    CallRejectedError,
    CallTimeoutError,
    DeadlineExceededError,
    RunDeadlineExceededError,
)
from callboard.telemetry._tracker import FAILURES, Outcome


def outcome_of(error: BaseException | None) -> Outcome:
    """How a call, an attempt or a run ended which ended with this error, or with `None`."""
    if error is None or isinstance(error, ParentCommand):
        return "ok"
    if isinstance(error, GraphBubbleUp):
        return "interrupted"
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
    """How a run ended; one that waits with questions has raised nothing."""
    return "interrupted" if event.questions else outcome_of(event.error)


def has_failed(outcome: Outcome) -> bool:
    """Whether that is a failure: a question is none."""
    return outcome in FAILURES


def is_cancellation(error: BaseException) -> bool:
    """Whether it is one of an event loop's, whichever loop runs."""
    return not isinstance(error, Exception) and type(error).__name__ in ("CancelledError", "Cancelled")


def error_type(error: BaseException) -> str:
    """The value of `error.type`: few different ones, and no word of the error's text.

    That of a group is its first error's. Errors of Python's own go by their bare name, others by their full one.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    outcome = outcome_of(error)
    if outcome not in ("error", "interrupted"):
        return outcome
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
