"""Rules that decide which errors of a call become messages for the model, and the texts of these messages.

A call that started and never ended has an unknown outcome. Its policy decides whether it runs again, becomes a message,
or becomes a question to a person.
"""

import inspect
from collections.abc import Callable
from operator import is_
from types import UnionType
from typing import Any, NoReturn, Union, cast, get_args, get_origin, get_type_hints
from uuid import uuid4

from langchain_core.messages import ToolCall, ToolMessage
from langgraph.errors import GraphBubbleUp, GraphInterrupt, is_invalid_resume
from langgraph.types import Interrupt
from pydantic import ValidationError

from callboard._langgraph._vocabulary import (
    INVALID_TOOL_NAME_ERROR_TEMPLATE,
    TOOL_CALL_ERROR_TEMPLATE,
    ToolInvocationError,
)
from callboard._records._policies import CallPolicy
from callboard.exceptions import ActorDiedError, CallError, EngineError

ErrorHandling = bool | str | Callable[..., str] | type[Exception] | tuple[type[Exception], ...] | None

_MAX_TEXT = 1_000_000
"""Maximum number of characters of one argument of an error in the text for the model."""

Judge = Callable[[Exception], str | None]
"""Function that takes an error, and returns the text for the model, or `None` if the error must be raised."""


def only_invalid_arguments(error: Exception) -> str:
    """Return the text for the model if a call's arguments were invalid; raise every other error."""
    if isinstance(error, ToolInvocationError):
        return str(error.message)
    raise error


class ErrorPolicy:
    """Parsed `handle_tool_errors` option of a node: which errors become messages, and with which texts."""

    def __init__(self, handling: ErrorHandling) -> None:
        self._handling = handling
        self._types = _exception_types(handling)
        self._is_default = handling is only_invalid_arguments

    def content(self, error: Exception) -> str | None:
        """Return the text for the model about an error of a tool; `None` if the error must be raised."""
        if not self._handling or not isinstance(error, self._types) or is_control_flow(error):
            return None
        if self._is_default and not isinstance(error, ToolInvocationError):
            # The model's value did no harm: the tool has run, and its neighbours must not be lost for its result.
            return None if (reason := text_about_lost_result(error)) is None else f"Error: {reason}"
        return self._text(error)

    def invalid_arguments(self, error: Exception) -> str | None:
        """Return the text for the model if an error is about invalid arguments; `None` for any other error."""
        # Every other error of the tool must reach the middleware.
        return self.content(error) if isinstance(error, ToolInvocationError) else None

    def without_result(self, error: Exception) -> str | None:
        """Return the text for the model about a `CallError`, such as a timeout; `None` if the error must be raised."""
        if not self._handling or not isinstance(error, CallError):
            return None
        return f"Error: {error}" if self._is_default or not isinstance(error, self._types) else self._text(error)

    def after_middleware(self, error: Exception) -> str | None:
        """Return the text for the model about an error that no middleware has handled; `None` if it must be raised."""
        return self.content(error) or self.without_result(error)

    def after_wrapper(self, error: Exception) -> str | None:
        """Return the text for the model about an error of a `wrap_tool_call` function; `None` if it must be raised."""
        if self._is_default or isinstance(error, CallError):
            return self.after_middleware(error)
        # As in LangGraph, the type of the error does not matter.
        return self._text(error) if self._handling and not is_control_flow(error) else None

    def _text(self, error: Exception) -> str:
        handling = self._handling
        if isinstance(handling, str):
            return handling
        if handling is None or isinstance(handling, (bool, tuple, type)):
            if isinstance(error, CallError):
                return f"Error: {error}"  # such as a timeout: the default text would ask the model to fix its mistake
            if (reason := text_about_lost_result(error)) is not None:
                return f"Error: {reason}"
            try:
                # Python would write a text of 16 MB for 0.1 s, in which no other task and no other thread runs.
                args = [
                    f"{arg[:_MAX_TEXT]}..." if isinstance(arg, str) and len(arg) > _MAX_TEXT else arg
                    for arg in error.args
                ]
                is_whole = all(map(is_, args, error.args)) or type(error).__repr__ is not BaseException.__repr__
                text = repr(error) if is_whole else f"{type(error).__name__}({', '.join(map(repr, args))})"
            except Exception as failure:  # such as a RecursionError for arguments that are nested too deeply
                text = f"{type(error).__name__}, whose text cannot be made ({type(failure).__name__})"
            return str(TOOL_CALL_ERROR_TEMPLATE.format(error=text))
        return handling(error)


def is_control_flow(error: BaseException) -> bool:
    """Return whether an error is an interrupt, a parent command or an invalid answer of a person.

    Error handlers let these errors pass.

    Args:
        error: error of a call.
    """
    return isinstance(error, GraphBubbleUp) or is_invalid_resume(error)


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


def _exception_types(handling: Any) -> tuple[type[Exception], ...]:
    if handling is None or isinstance(handling, (bool, str)):
        return (Exception,)
    if handling is only_invalid_arguments:
        return (Exception,)  # as its annotation says; reading annotations for each node takes long
    kinds = handling if isinstance(handling, tuple) else (handling,)
    if all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return kinds
    if inspect.iscoroutinefunction(handling):
        raise TypeError(f"handle_tool_errors takes a plain function from an error to a text, got {handling!r}")
    if callable(handling) and not isinstance(handling, type):
        return _types_in_annotation(cast("Callable[..., str]", handling))
    raise ValueError(
        f"Got unexpected type of `handle_tool_error`. Expected bool, str or callable. Received: {handling}"
    )


def _types_in_annotation(handler: Callable[..., str]) -> tuple[type[Exception], ...]:
    """Return the exception types in the annotation of an error handler's parameter; `Exception` if it has none."""
    parameters = list(inspect.signature(handler).parameters)
    if len(parameters) == 2 and parameters[0] in ("self", "cls"):
        parameters = parameters[1:]
    try:
        hints = get_type_hints(handler)
    except (NameError, TypeError):  # a callable object, or names that are local to a function
        hints = get_type_hints(type(handler).__call__) if not inspect.isroutine(handler) else {}
    if not parameters or parameters[0] not in hints:
        return (Exception,)
    hint = hints[parameters[0]]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return kinds
    if len(kinds) > 1:
        raise ValueError(
            "All types in the error handler error annotation must be Exception types. For example, "
            f"`def custom_handler(e: Union[ValueError, TypeError])`. Got '{hint}' instead."
        )
    raise ValueError(
        "Arbitrary types are not supported in the error handler signature. Please annotate the error with either "
        "a specific Exception type or a union of Exception types. For example, `def custom_handler(e: ValueError)` "
        f"or `def custom_handler(e: Union[ValueError, TypeError])`. Got '{hint}' instead."
    )


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


# Calls that started and never ended


UNKNOWN = (
    "Error: this call was begun, and did not come to its end; whether it had any effect is unknown. Find out before "
    "calling the tool again."
)


def unstorable_text(reason: str) -> str:
    """Return the text for the model about a call that has finished with a result that the database cannot store."""
    return (
        "Error: the tool has run and finished, but its result is lost, because the database cannot store it: "
        f"{reason}. Do not call the tool again for the same effect."
    )


REPEATS = "__callboard_repeats__"
"""Name of an attribute that marks functions which themselves repeat a call after the death of its actor."""


class OutcomeUnknown(GraphInterrupt):
    """Interrupt that asks a person what to do with a call that started and never ended."""

    def __init__(self, name: str, args: dict[str, Any], reason: str) -> None:
        super().__init__((question_about(name, args, reason),))


def question_instead(policy: CallPolicy, name: str, args: dict[str, Any], error: Exception) -> OutcomeUnknown | None:
    """Return an interrupt that asks a person about a failed call; `None` if no question is allowed or needed."""
    # An idempotent call of an actor is not asked about: it has run again as often as it may.
    if policy.on_unknown != "ask" or (policy.idempotent and isinstance(error, ActorDiedError)):
        return None
    if not isinstance(error, (ActorDiedError, EngineError)) or error.ended != "unknown":
        return None
    return OutcomeUnknown(name, args, error.reason)


def runs_again(policy: CallPolicy) -> bool:
    """Return whether a policy lets a call run again if it is unknown whether the call had its effect."""
    return policy.idempotent or policy.on_unknown == "rerun"


def is_lost(error: BaseException) -> bool:
    """Return whether a call's outcome is unknown because its actor or worker died for a reason other than the call."""
    if not isinstance(error, (ActorDiedError, EngineError)) or error.ended != "unknown":
        return False
    of_engine = error if isinstance(error, EngineError) else error.__cause__
    return not (isinstance(of_engine, EngineError) and of_engine.recurs)


def question_about(name: str, args: dict[str, Any], reason: str) -> Interrupt:
    """Return the question to a person about a call with unknown outcome, in the format of LangGraph's agent inbox."""
    allowed = {"allow_accept": True, "allow_respond": True, "allow_ignore": True, "allow_edit": False}
    request = {
        "action_request": {"action": name, "args": args},
        "config": allowed,
        "description": f"This call was begun, and then {reason}; whether it had any effect is unknown. "
        "Accept to run it again, respond with its result, or ignore it.",
    }
    # With an id of its own, so that an answer that arrives twice cannot answer a later question.
    return Interrupt([request], id=uuid4().hex)


def unknown_text(key: str, call: ToolCall, answer: Any) -> ToolMessage | None:
    """Return the tool message that a person chose for a call with an unknown outcome; `None` to run the call again."""
    decision: Any = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    kind = decision.get("type") if isinstance(decision, dict) else None
    if kind == "accept":
        return None
    if kind == "response" and decision.get("args") is not None:
        return ToolMessage(str(decision["args"]), name=call["name"], tool_call_id=call["id"])
    if kind == "ignore":
        return error_message(UNKNOWN, call)
    raise ValueError(
        f"The answer about call {key!r} is {{'type': 'accept'}}, {{'type': 'response', 'args': ...}} or "
        f"{{'type': 'ignore'}}; got {answer!r}"
    )
