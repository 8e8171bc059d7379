"""Option `handle_tool_errors`: which errors become messages for the model, by the place to which an error has come."""

import inspect
from collections.abc import Callable, Mapping
from operator import is_
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from callboard._langchain._errors import is_control_flow, text_about_lost_result
from callboard._langgraph._vocabulary import TOOL_CALL_ERROR_TEMPLATE, ToolInvocationError
from callboard._util._callers import is_async
from callboard.exceptions import CallCancelledError, CallError

ErrorHandling = bool | str | Callable[..., str] | type[Exception] | tuple[type[Exception], ...] | None

_MAX_TEXT = 1_000_000
"""Maximum number of characters of one argument of an error in the text for the model."""

Judge = Callable[[Exception], str | None]
"""Function that takes an error, and returns the text for the model, or `None` if the error must be raised."""

Place = Literal["tool", "tool in middleware", "middleware", "wrapper", "call"]
"""Place on the way of an error: the tool, alone or inside of middleware; the end of all middleware, or of a
`wrap_tool_call` function; the end of a call that has neither."""
Kind = Literal["arguments", "handled", "call", "any"]
"""Kind of an error: invalid arguments that the option handles; any error that it handles; a `CallError`, such as a
timeout, even one that it does not handle; any error, if the application has set the option."""

_MESSAGES_AT: Mapping[Place, frozenset[Kind]] = {
    "tool": frozenset(("handled",)),
    # Middleware must see all other errors.
    "tool in middleware": frozenset(("arguments",)),
    "middleware": frozenset(("handled", "call")),
    # As in LangGraph, the type of the error does not matter.
    "wrapper": frozenset(("handled", "call", "any")),
    "call": frozenset(("call",)),
}
"""Kinds of errors that become messages at a place; other errors are raised."""


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

    def text(self, place: Place, error: Exception) -> str | None:
        """Return the text for the model about an error at a place; `None` if the error must be raised there."""
        if isinstance(error, CallCancelledError) and error.reason is not None:
            return f"Error: {error}"  # who cancelled the call knows of it: it is a message for the model, never raised
        if not self._handling or is_control_flow(error) or self._kinds(error).isdisjoint(_MESSAGES_AT[place]):
            return None
        if isinstance(self._handling, str):
            return self._handling
        has_own_text = self._is_default or isinstance(self._handling, (bool, tuple, type))
        if isinstance(error, CallError) and (has_own_text or not isinstance(error, self._types)):
            return f"Error: {error}"  # the default text would ask the model to fix its mistake
        if has_own_text and (reason := text_about_lost_result(error)) is not None:
            return f"Error: {reason}"
        if isinstance(self._handling, (bool, tuple, type)):
            return default_text(error)
        return self._handling(error)

    def _kinds(self, error: Exception) -> set[Kind]:
        kinds: set[Kind] = set()
        if isinstance(error, CallError):
            kinds.add("call")
        if self._is_default:
            # The model's value did no harm: the tool has run, and its neighbours must not be lost for its result.
            if isinstance(error, ToolInvocationError) or text_about_lost_result(error) is not None:
                kinds.add("handled")
        else:
            kinds.add("any")
            if isinstance(error, self._types):
                kinds.add("handled")
        if "handled" in kinds and isinstance(error, ToolInvocationError):
            kinds.add("arguments")
        return kinds


def default_text(error: Exception) -> str:
    """Return LangGraph's text for the model about an error; of a text of megabytes, only the beginning."""
    try:
        # Python would write a text of 16 MB for 0.1 s, in which no other task and no other thread runs.
        args = [f"{arg[:_MAX_TEXT]}..." if isinstance(arg, str) and len(arg) > _MAX_TEXT else arg for arg in error.args]
        is_whole = all(map(is_, args, error.args)) or type(error).__repr__ is not BaseException.__repr__
        text = repr(error) if is_whole else f"{type(error).__name__}({', '.join(map(repr, args))})"
    except Exception as failure:  # such as a RecursionError for arguments that are nested too deeply
        text = f"{type(error).__name__}, whose text cannot be made ({type(failure).__name__})"
    return str(TOOL_CALL_ERROR_TEMPLATE.format(error=text))


def _exception_types(handling: Any) -> tuple[type[Exception], ...]:
    if handling is None or isinstance(handling, (bool, str)):
        return (Exception,)
    if handling is only_invalid_arguments:
        return (Exception,)  # as its annotation says; reading annotations for each node takes long
    kinds = handling if isinstance(handling, tuple) else (handling,)
    if all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return kinds
    if is_async(handling):
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
