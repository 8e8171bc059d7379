"""Errors of a call: those that are control flow, their messages for the model, and lost results."""

from typing import Any, NoReturn

from langchain_core.messages import ToolCall, ToolMessage
from langgraph.errors import GraphBubbleUp, is_invalid_resume
from pydantic import ValidationError

from callboard._langgraph._vocabulary import INVALID_TOOL_NAME_ERROR_TEMPLATE, ToolInvocationError
from callboard.exceptions import CallError, LoopError


def is_control_flow(error: BaseException) -> bool:
    """Return whether an error is an interrupt, a parent command, an invalid answer of a person, or the end of a loop.

    Error handlers let these errors pass.

    Args:
        error: error of a call.
    """
    return isinstance(error, (GraphBubbleUp, LoopError)) or is_invalid_resume(error)


def error_message(content: str, call: ToolCall, error: Exception | None = None) -> ToolMessage:
    """Return the error message of a failed call. For a `CallError`, `additional_kwargs` says how the call ended.

    Args:
        content: text for the model.
        call: the tool call that the message answers.
        error: error that ended the call.
    """
    extra: dict[str, Any] = {}
    if isinstance(error, CallError):
        extra["additional_kwargs"] = {"callboard": {"ended": error.ended, **error.facts}}
    return ToolMessage(content=content, name=call["name"], tool_call_id=call["id"], status="error", **extra)


def unknown_tool(call: ToolCall, tool_names: Any) -> ToolMessage:
    """Return the error message for a call of a tool that does not exist; `tool_names` are the names of all tools."""
    content = INVALID_TOOL_NAME_ERROR_TEMPLATE.format(
        requested_tool=call["name"], available_tools=", ".join(tool_names)
    )
    return error_message(content, call)


def raise_invalid_arguments(error: ValidationError, call: ToolCall, injected: frozenset[str]) -> NoReturn:
    """Raise ToolInvocationError for invalid arguments, but omit injected arguments, which the model does not write."""
    if is_invalid_resume(error):
        raise error
    # The text goes to the model: injected state and stores are confidential, and the model could not correct them.
    details = [detail for detail in error.errors() if not detail["loc"] or detail["loc"][0] not in injected]
    shown_details = [_without_injected(detail, injected) for detail in details] or [_INVALID_INJECTED]
    raise ToolInvocationError(call["name"], error, call["args"], shown_details) from error


_INVALID_INJECTED: Any = {
    "type": "injected",
    "loc": ("the application",),
    "msg": "A value that it adds to this call is invalid. No other arguments help: do not repeat the call.",
    "input": None,
}


def _without_injected(detail: Any, injected: frozenset[str]) -> Any:
    # An error of a validator for the whole model has no place, and LangGraph's text would begin with a colon.
    loc, input_value = detail["loc"] or ("the arguments together",), detail.get("input")
    if isinstance(input_value, dict):
        input_value = {key: value for key, value in input_value.items() if key not in injected}
    return {**detail, "loc": loc, "input": input_value}


# Results that were lost after the tool had finished


class _FinishedNote(str):
    """Note on an error that was raised after a tool's function had returned."""

    __slots__ = ("model_text",)
    model_text: str
    """Sentence for the model, which must learn that the tool has run."""


def note_lost_result(error: Exception, tool: str, call_id: str | None, result: object) -> None:
    """Add a note to an error that was raised when a tool's result could not be converted to text."""
    kind = type(result).__qualname__
    note = _FinishedNote(
        f"Raised when what the tool {tool!r} returned for the call {call_id!r}, of the type {kind}, was turned into a "
        "text. Return a text, or repair its __str__."
    )
    note.model_text = (
        f"The tool {tool!r} has run and finished, but its result is lost: an object of the type {kind} could not be "
        f"turned into a text ({error!r}). Do not assume that it had no effect."
    )
    error.add_note(note)


def text_about_lost_result(error: Exception) -> str | None:
    """Return a text for the model if a tool has run and only the conversion of its result failed; else `None`."""
    notes = getattr(error, "__notes__", ())
    return next((note.model_text for note in notes if isinstance(note, _FinishedNote)), None)


def unstorable_text(reason: str) -> str:
    """Return the text for the model about a call that has finished with a result that the database cannot store."""
    return (
        "Error: the tool has run and finished, but its result is lost, because the database cannot store it: "
        f"{reason}. Do not call the tool again for the same effect."
    )
