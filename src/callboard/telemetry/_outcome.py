"""Outcomes of calls and runs, and error types that reveal nothing of an error's text."""

from langgraph.errors import GraphBubbleUp, ParentCommand

from callboard._records._events import RunEvent
from callboard.exceptions import (
    CallCancelledError,
    CallRejectedError,
    CallTimeoutError,
    DeadlineExceededError,
    RunDeadlineExceededError,
)
from callboard.telemetry._tracker import FAILURES, Outcome


def outcome_of(error: BaseException | None) -> Outcome:
    """Return the outcome of a call, attempt or run that ended with this error, or without one (`None`)."""
    if error is None or isinstance(error, ParentCommand):  # a Command for the parent graph is a result
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
    """Return the outcome of a run. A run that stopped with open questions is interrupted, without an error."""
    return "interrupted" if event.questions else outcome_of(event.error)


def has_failed(outcome: Outcome) -> bool:
    """Return whether an outcome is a failure; `interrupted` is not."""
    return outcome in FAILURES


def is_cancellation(error: BaseException) -> bool:
    """Return whether an error is the cancellation of asyncio or trio."""
    # By name, because trio may not be installed, and the running loop may be another one.
    return not isinstance(error, Exception) and type(error).__name__ in ("CancelledError", "Cancelled")


def error_type(error: BaseException) -> str:
    """Return the value of `error.type`: an outcome or a class name, so few different values and no error text.

    An exception group has the type of its first error. Built-in errors have their bare name, others the full name.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    outcome = outcome_of(error)
    if outcome not in ("error", "interrupted"):
        return outcome
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
