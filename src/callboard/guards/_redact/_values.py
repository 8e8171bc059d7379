"""Functions that replace all strings in nested values and exceptions; a value that changes is copied.

Exceptions are changed in place if possible, so that their types stay.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import Interrupt, Send
from pydantic import BaseModel

from callboard.exceptions import CallboardError
from callboard.tools._ledger import CallsInterrupted

# Values


ReplaceText = Callable[[str], str]
TokenForSecretName = Callable[[str, str], str | None]
"""Function from a dict key or field name, and the text under it, to a token; `None` if the name marks no secret."""

MAX_DEPTH = 64
"""Maximum levels of nesting in which strings are replaced; deeper values are replaced by a note."""

TOO_DEEP_NOTE = "[nested too deeply]"
_CYCLE_NOTE = "[...]"
_MIN_NUMBER_DIGITS = 10
"""Minimum digits of a whole number that is searched; a shorter one cannot be the number of a card or an account."""
_MAX_NUMBER_DIGITS = 64
"""Maximum digits of a whole number that is searched: writing a huge number as text takes quadratic time."""

_IDENTITY_FIELDS = frozenset(("id", "tool_call_id", "type", "name", "status"))
"""Fields that identify a message. LangGraph matches on them, so they never change."""


def replace_texts(
    value: Any,
    replace_text: ReplaceText,
    token_for_secret_name: TokenForSecretName | None = None,
    replace_error: Callable[[BaseException], BaseException] | None = None,
) -> Any:
    """Return a copy of a nested value in which the function `replace` has replaced each string."""
    # Unchanged parts are shared with the original. Long whole numbers are treated as strings. Ids and names of messages
    # stay, and so does any object of another kind. `token_under` replaces strings and numbers under a dict key or in a
    # field, also in a list there, and `replace_error` replaces exceptions.
    replacement = _TextReplacement(
        replace_text, token_for_secret_name or (lambda _, __: None), replace_error or (lambda error: error)
    )
    result = replacement.replace(value)
    # The copy of a cyclic value has a note in place of the cycle; so return the copy only if a string changed.
    return result if replacement.has_changed else value


class _TextReplacement:
    """State of one pass through a nested value. Only the parts that contain a changed string are copied."""

    def __init__(
        self,
        replace_text: ReplaceText,
        token_for_secret_name: TokenForSecretName,
        replace_error: Callable[[BaseException], BaseException],
    ) -> None:
        self.has_changed = False
        self._replace_text = replace_text
        self._token_for_secret_name = token_for_secret_name
        self._replace_error = replace_error
        # Keyed by `id()` and, for a list, the name before it. The value itself is kept as well, because the id of a
        # freed object may be reused.
        self._results_by_id: dict[tuple[int, str | None], tuple[Any, Any]] = {}
        self._depth = 0

    def replace(self, value: Any) -> Any:
        match value:
            case str():
                return self._record_change(value, self._replace_text(value))
            case int():
                if isinstance(value, bool) or not 10 ** (_MIN_NUMBER_DIGITS - 1) <= abs(value) < 10**_MAX_NUMBER_DIGITS:
                    return value
                digits = str(int(value))  # a member of an `IntEnum` has a name as its text
                new_text = self._replace_text(digits)
                return value if new_text == digits else self._record_change(value, new_text)
            case BaseException():
                return self._record_change(value, self._replace_error(value))
            case dict():
                return self._rebuild_once(value, self._replace_in_dict)
            case list() | tuple() | set() | frozenset():
                return self._rebuild_once(value, self._replace_in_collection)
            case BaseMessage():
                return self._rebuild_once(value, self._replace_in_message)
            case BaseModel():
                return self._rebuild_once(value, self._replace_in_model)
            case Send():
                return self._rebuild_once(value, self._replace_in_send)
            case _ if is_dataclass(value) and not isinstance(value, type):
                return self._rebuild_once(value, self._replace_in_dataclass)
            case _:
                return value

    def _record_change(self, old: Any, new: Any) -> Any:
        if new is old or (isinstance(old, str) and new == old):
            return old
        self.has_changed = True
        return new

    def _rebuild_once(self, value: Any, rebuild: Callable[[Any], Any], name: str | None = None) -> Any:
        key = id(value), name
        if key in self._results_by_id:
            _value, result = self._results_by_id[key]
            return result
        if self._depth == MAX_DEPTH:
            return self._record_change(value, TOO_DEEP_NOTE)
        self._results_by_id[key] = value, _CYCLE_NOTE
        # Registered before its parts are visited: a cycle then finds the note instead of recursing for ever.
        self._depth += 1
        try:
            result = rebuild(value)
        finally:
            self._depth -= 1
        self._results_by_id[key] = value, result
        return result

    def _replace_under_name(self, name: object, value: Any) -> Any:
        if not isinstance(name, str):
            return self.replace(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._rebuild_once(value, partial(self._replace_in_collection, name=name), name)
        is_text = isinstance(value, str) or (isinstance(value, (int, float)) and not isinstance(value, bool))
        token = self._token_for_secret_name(name, f"{value}") if is_text else None
        return self.replace(value) if token is None else self._record_change(value, token)

    def _replace_in_dict(self, value: dict[Any, Any]) -> Any:
        new_items = [(self.replace(key), self._replace_under_name(key, item)) for key, item in value.items()]
        pairs = zip(new_items, value.items(), strict=True)
        is_same = all(new_key is key and new_item is item for (new_key, new_item), (key, item) in pairs)
        return value if is_same else dict(new_items)

    def _replace_in_collection(self, value: Any, name: str | None = None) -> Any:
        items = [self._replace_under_name(name, item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if isinstance(value, tuple):
            is_named_tuple = hasattr(value, "_fields")
            return type(value)(*items) if is_named_tuple else tuple(items)
        collection_class = next(cls for cls in (list, set, frozenset) if isinstance(value, cls))
        return collection_class(items)

    def _changed_fields(self, items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Replace strings in an object's fields; return the changed fields only, each with its new value."""
        pairs = ((name, old, self._replace_under_name(name, old)) for name, old in items)
        return {name: new for name, old, new in pairs if new is not old}

    def _replace_in_model(self, value: BaseModel) -> Any:
        changed_fields = self._changed_fields({**vars(value), **(value.__pydantic_extra__ or {})}.items())
        return value.model_copy(update=changed_fields) if changed_fields else value

    def _replace_in_message(self, value: BaseMessage) -> Any:
        # Of tool calls only the arguments are walked: ids and names connect a call with its answer.
        calls = {name: vars(value).get(name) or () for name in ("tool_calls", "invalid_tool_calls")}
        unchanged_names = _IDENTITY_FIELDS | calls.keys()
        items = {**vars(value), **(value.__pydantic_extra__ or {})}.items()
        changed_fields = self._changed_fields((name, item) for name, item in items if name not in unchanged_names)
        for name, old_calls in calls.items():
            new_calls = []
            for call in old_calls:
                args = self.replace(call["args"])
                new_calls.append(call if args is call["args"] else {**call, "args": args})
            if any(new is not old for new, old in zip(new_calls, old_calls, strict=True)):
                changed_fields[name] = new_calls
        return value.model_copy(update=changed_fields) if changed_fields else value

    def _replace_in_send(self, value: Send) -> Any:
        arg = self.replace(value.arg)
        return value if arg is value.arg else Send(value.node, arg, timeout=value.timeout)

    def _replace_in_dataclass(self, value: Any) -> Any:
        # The id of an interrupt stays, because answers name it.
        names = ["value"] if isinstance(value, Interrupt) else [field.name for field in fields(value)]
        changed_fields = self._changed_fields((name, getattr(value, name)) for name in names if hasattr(value, name))
        if not changed_fields:
            return value
        # A copy and `object.__setattr__`, because the dataclass may be frozen or have other constructor arguments.
        changed_copy = copy.copy(value)
        for name, new in changed_fields.items():
            object.__setattr__(changed_copy, name, new)
        return changed_copy


# Exceptions

_MAX_CAUSES = 32
"""Maximum nesting of causes and group members in an error. Of a deeper error, only the type's name is kept."""

_CALL_ATTRIBUTES = frozenset(("tool", "call_id", "tool_call_id"))
"""Attributes of errors that identify a call. They are never changed, because callers match on them."""


class RedactedError(CallboardError):
    """Raised in place of an error whose own text could not be cleared of secrets.

    `original` is the name of the error's type. `args[0]` is that name and the text, with tokens for secrets.
    """

    def __init__(self, original: str, text: str) -> None:
        self.original = original
        super().__init__(f"{original}: {text}" if text else original)


class ErrorRedaction:
    """Replacement of secrets in exceptions: in their texts and attributes, causes, contexts and group members."""

    def __init__(self, replace_text: ReplaceText, token_for_secret_name: TokenForSecretName) -> None:
        self._replace_text = replace_text
        self._token_for_secret_name = token_for_secret_name
        # Keyed by `id()`. The error itself is kept as well, because the id of a freed object may be reused.
        self._results_by_id: dict[int, tuple[BaseException, BaseException]] = {}
        self._depth = 0

    def redact_error(self, error: BaseException) -> BaseException:
        """Replace secrets in an error, in place if possible; return the error, or a `RedactedError` if some remain."""
        if id(error) in self._results_by_id:
            _error, redacted_error = self._results_by_id[id(error)]
            return redacted_error
        if self._depth == _MAX_CAUSES:
            return RedactedError(type(error).__qualname__, "")
        # Registered before its parts are visited: causes and contexts may form a cycle.
        self._results_by_id[id(error)] = error, error
        self._depth += 1
        try:
            redacted_error = self._redact_parts(error)
        finally:
            self._depth -= 1
        self._results_by_id[id(error)] = error, redacted_error
        return redacted_error

    def replace_if_secret(self, error: BaseException) -> BaseException:
        """Return the given error if its texts contain no secrets; otherwise return a `RedactedError`."""
        # The error itself is not changed, because other code may own it, and a `__str__` may use data that cannot be
        # assigned.
        if all(self._replace_text(text) == text for text in _printed_texts(error)):
            return error
        return RedactedError(type(error).__qualname__, self._replace_text(next(_printed_texts(error), "")))

    def redact_control_flow(self, error: Exception) -> None:
        """Replace secrets in the interrupts or command of a control-flow exception, in place."""
        error.args = self._redact_value(error.args)
        if isinstance(error, CallsInterrupted):
            error.interrupts = error.args[0]

    def _redact_value(self, value: Any) -> Any:
        return replace_texts(value, self._replace_text, self._token_for_secret_name, self.redact_error)

    def _redact_parts(self, error: BaseException) -> BaseException:
        redacted_error: BaseException
        if isinstance(error, BaseExceptionGroup):
            members = [self.redact_error(member) for member in error.exceptions]
            message = self._replace_text(error.message)
            if message != error.message:
                redacted_error = BaseExceptionGroup(message, members)
            else:
                self._redact_attributes(error)
                is_same = all(new is old for new, old in zip(members, error.exceptions, strict=True))
                redacted_error = error if is_same else error.derive(members)
        else:
            # Unset and read-only attributes stay; whether the rest was enough is checked afterwards.
            for name in ("args", *_slot_names(type(error))):
                with suppress(Exception):
                    value = getattr(error, name)
                    if (new := self._redact_value(value)) is not value:
                        setattr(error, name, new)
            self._redact_attributes(error)
            redacted_error = self.replace_if_secret(error)
        if redacted_error is not error:
            redacted_error.__traceback__ = error.__traceback__
            for note in getattr(error, "__notes__", ()):
                redacted_error.add_note(self._replace_text(str(note)))
        cause, context, is_suppressed = error.__cause__, error.__context__, error.__suppress_context__
        redacted_error.__cause__ = None if cause is None else self.redact_error(cause)
        redacted_error.__context__ = None if context is None else self.redact_error(context)
        redacted_error.__suppress_context__ = is_suppressed
        return redacted_error

    def _redact_attributes(self, error: BaseException) -> None:
        for name, value in vars(error).items():
            if name not in _CALL_ATTRIBUTES:
                vars(error)[name] = self._redact_value(value)


def _printed_texts(error: BaseException) -> Iterator[str]:
    """Yield the `str` and the `repr` of an exception, which logs and models may show."""
    for show in (str, repr):
        try:
            yield show(error)
        except Exception:  # noqa: S112 (then nobody can read it either)
            continue


def _slot_names(error_class: type) -> Iterator[str]:
    """Yield the names of the attributes that an exception type stores outside of `__dict__`, such as in `__slots__`."""
    # They are in `__slots__`, or built-in ones such as `OSError.filename`.
    for base in error_class.__mro__:
        if base in (BaseException, object):
            continue
        for name, value in vars(base).items():
            if (inspect.ismemberdescriptor(value) or inspect.isgetsetdescriptor(value)) and not name.startswith("__"):
                yield name
