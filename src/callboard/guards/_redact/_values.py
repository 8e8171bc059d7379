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
TokenUnder = Callable[[str, str], str | None]
"""Function from a dict key or field name, and the text under it, to a token; `None` if the name marks no secret."""

DEEPEST = 64
"""Maximum levels of nesting in which strings are replaced; deeper values are replaced by a note."""

TOO_DEEP = "[nested too deeply]"
_CYCLE = "[...]"
_SHORTEST_NUMBER = 10
"""Minimum digits of a whole number that is searched; a shorter one cannot be the number of a card or an account."""

_IDENTITY = frozenset(("id", "tool_call_id", "type", "name", "status"))
"""Fields that identify a message. LangGraph matches on them, so they never change."""


def replace_texts(
    value: Any,
    replace: ReplaceText,
    token_under: TokenUnder | None = None,
    replace_error: Callable[[BaseException], BaseException] | None = None,
) -> Any:
    """Return a copy of a nested value in which the function `replace` has replaced each string."""
    # Unchanged parts are shared with the original. Long whole numbers are treated as strings. Ids and names of messages
    # stay, and so does any object of another kind. `token_under` replaces strings and numbers under a dict key or in a
    # field, also in a list there, and `replace_error` replaces exceptions.
    walk = _Walk(replace, token_under or (lambda _, __: None), replace_error or (lambda error: error))
    result = walk.replace(value)
    # The copy of a cyclic value has a note in place of the cycle; so return the copy only if a string changed.
    return result if walk.changed else value


class _Walk:
    """State of one pass through a nested value. Only the parts that contain a changed string are copied."""

    def __init__(
        self,
        replace_text: ReplaceText,
        token_under: TokenUnder,
        replace_error: Callable[[BaseException], BaseException],
    ) -> None:
        self.changed = False
        self._replace_text = replace_text
        self._token_under = token_under
        self._replace_error = replace_error
        # Keyed by `id()` and, for a list, the name before it. The value itself is kept as well, because the id of a
        # freed object may be reused.
        self._done: dict[tuple[int, str | None], tuple[Any, Any]] = {}
        self._depth = 0

    def replace(self, value: Any) -> Any:
        match value:
            case str():
                return self._record_change(value, self._replace_text(value))
            case int():
                if isinstance(value, bool) or not 10 ** (_SHORTEST_NUMBER - 1) <= abs(value) < 10**64:
                    return value
                digits = str(int(value))
                new = self._replace_text(digits)
                return value if new == digits else self._record_change(value, new)
            case BaseException():
                return self._record_change(value, self._replace_error(value))
            case dict():
                return self._rebuild_once(value, self._dict)
            case list() | tuple() | set() | frozenset():
                return self._rebuild_once(value, self._collection)
            case BaseMessage():
                return self._rebuild_once(value, self._message)
            case BaseModel():
                return self._rebuild_once(value, self._model)
            case Send():
                return self._rebuild_once(value, self._send)
            case _ if is_dataclass(value) and not isinstance(value, type):
                return self._rebuild_once(value, self._dataclass)
            case _:
                return value

    def _record_change(self, old: Any, new: Any) -> Any:
        if new is old or (isinstance(old, str) and new == old):
            return old
        self.changed = True
        return new

    def _rebuild_once(self, value: Any, rebuild: Callable[[Any], Any], name: str | None = None) -> Any:
        key = id(value), name
        if key in self._done:
            return self._done[key][1]
        if self._depth == DEEPEST:
            return self._record_change(value, TOO_DEEP)
        self._done[key] = value, _CYCLE
        # Registered before its parts are visited: a cycle then finds the note instead of recursing for ever.
        self._depth += 1
        try:
            result = rebuild(value)
        finally:
            self._depth -= 1
        self._done[key] = value, result
        return result

    def _item(self, name: object, value: Any) -> Any:
        if not isinstance(name, str):
            return self.replace(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._rebuild_once(value, partial(self._collection, name=name), name)
        is_text = isinstance(value, str) or (isinstance(value, (int, float)) and not isinstance(value, bool))
        token = self._token_under(name, f"{value}") if is_text else None
        return self.replace(value) if token is None else self._record_change(value, token)

    def _dict(self, value: dict[Any, Any]) -> Any:
        items = [(self.replace(name), self._item(name, item)) for name, item in value.items()]
        pairs = zip(items, value.items(), strict=True)
        is_same = all(new[0] is old[0] and new[1] is old[1] for new, old in pairs)
        return value if is_same else dict(items)

    def _collection(self, value: Any, name: str | None = None) -> Any:
        items = [self._item(name, item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if isinstance(value, tuple):
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        collection_class = next(cls for cls in (list, set, frozenset) if isinstance(value, cls))
        return collection_class(items)

    def _fields(self, items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Replace strings in an object's fields; return the changed fields only, each with its new value."""
        pairs = ((name, old, self._item(name, old)) for name, old in items)
        return {name: new for name, old, new in pairs if new is not old}

    def _model(self, value: BaseModel) -> Any:
        changed = self._fields({**vars(value), **(value.__pydantic_extra__ or {})}.items())
        return value.model_copy(update=changed) if changed else value

    def _message(self, value: BaseMessage) -> Any:
        # Of tool calls only the arguments are walked: ids and names connect a call with its answer.
        calls = {name: vars(value).get(name) or () for name in ("tool_calls", "invalid_tool_calls")}
        excluded = _IDENTITY | calls.keys()
        items = {**vars(value), **(value.__pydantic_extra__ or {})}.items()
        changed = self._fields((name, item) for name, item in items if name not in excluded)
        for name, old_calls in calls.items():
            new_calls = []
            for call in old_calls:
                args = self.replace(call["args"])
                new_calls.append(call if args is call["args"] else {**call, "args": args})
            if any(new is not old for new, old in zip(new_calls, old_calls, strict=True)):
                changed[name] = new_calls
        return value.model_copy(update=changed) if changed else value

    def _send(self, value: Send) -> Any:
        arg = self.replace(value.arg)
        return value if arg is value.arg else Send(value.node, arg, timeout=value.timeout)

    def _dataclass(self, value: Any) -> Any:
        names = ["value"] if isinstance(value, Interrupt) else [field.name for field in fields(value)]
        changed = self._fields((name, getattr(value, name)) for name in names if hasattr(value, name))
        if not changed:
            return value
        # A copy and `object.__setattr__`, because the dataclass may be frozen or have other constructor arguments.
        changed_copy = copy.copy(value)
        for name, new in changed.items():
            object.__setattr__(changed_copy, name, new)
        return changed_copy


# Exceptions

_LONGEST_CHAIN = 32
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


class Clearing:
    """Replacement of secrets in exceptions: in their texts and attributes, causes, contexts and group members."""

    def __init__(self, replace_text: ReplaceText, token_under: TokenUnder) -> None:
        self._replace_text = replace_text
        self._token_under = token_under
        # Keyed by `id()`. The error itself is kept as well, because the id of a freed object may be reused.
        self._done: dict[int, tuple[BaseException, BaseException]] = {}
        self._depth = 0

    def clear(self, error: BaseException) -> BaseException:
        """Replace secrets in an error, in place if possible; return the error, or a `RedactedError` if some remain."""
        if id(error) in self._done:
            return self._done[id(error)][1]
        if self._depth == _LONGEST_CHAIN:
            return RedactedError(type(error).__qualname__, "")
        # Registered before its parts are visited: causes and contexts may form a cycle.
        self._done[id(error)] = error, error
        self._depth += 1
        try:
            clear_error = self._clear_parts(error)
        finally:
            self._depth -= 1
        self._done[id(error)] = error, clear_error
        return clear_error

    def copy(self, error: BaseException) -> BaseException:
        """Return the given error if its texts contain no secrets; otherwise return a `RedactedError`."""
        # The error itself is not changed, because other code may own it. Clearing a text again must change nothing. A
        # `__str__` may use data that cannot be assigned.
        if all(self._replace_text(text) == text for text in _texts(error)):
            return error
        return RedactedError(type(error).__qualname__, self._replace_text(next(_texts(error), "")))

    def clear_control_flow(self, error: Exception) -> None:
        """Replace secrets in the interrupts or command of a control-flow exception, in place."""
        error.args = self._walk(error.args)
        if isinstance(error, CallsInterrupted):
            error.interrupts = error.args[0]

    def _walk(self, value: Any) -> Any:
        return replace_texts(value, self._replace_text, self._token_under, self.clear)

    def _clear_parts(self, error: BaseException) -> BaseException:
        clear_error: BaseException
        if isinstance(error, BaseExceptionGroup):
            members = [self.clear(member) for member in error.exceptions]
            message = self._replace_text(error.message)
            if message != error.message:
                clear_error = BaseExceptionGroup(message, members)
            else:
                self._redact_attributes(error)
                is_same = all(new is old for new, old in zip(members, error.exceptions, strict=True))
                clear_error = error if is_same else error.derive(members)
        else:
            # Unset and read-only attributes stay; whether the rest was enough is checked afterwards.
            for name in ("args", *_slots(type(error))):
                with suppress(Exception):
                    value = getattr(error, name)
                    if (new := self._walk(value)) is not value:
                        setattr(error, name, new)
            self._redact_attributes(error)
            clear_error = self.copy(error)
        if clear_error is not error:
            clear_error.__traceback__ = error.__traceback__
            for note in getattr(error, "__notes__", ()):
                clear_error.add_note(self._replace_text(str(note)))
        cause, context, is_suppressed = error.__cause__, error.__context__, error.__suppress_context__
        clear_error.__cause__ = None if cause is None else self.clear(cause)
        clear_error.__context__ = None if context is None else self.clear(context)
        clear_error.__suppress_context__ = is_suppressed
        return clear_error

    def _redact_attributes(self, error: BaseException) -> None:
        for name, value in vars(error).items():
            if name not in _CALL_ATTRIBUTES:
                vars(error)[name] = self._walk(value)


def _texts(error: BaseException) -> Iterator[str]:
    """Yield the `str` and the `repr` of an exception, which logs and models may show."""
    for show in (str, repr):
        try:
            yield show(error)
        except Exception:  # noqa: S112 (then nobody can read it either)
            continue


def _slots(error_class: type) -> Iterator[str]:
    """Yield the names of the attributes that an exception type stores outside of `__dict__`, such as in `__slots__`."""
    # They are in `__slots__`, or built-in ones such as `OSError.filename`.
    for base in error_class.__mro__:
        if base in (BaseException, object):
            continue
        for name, value in vars(base).items():
            if (inspect.ismemberdescriptor(value) or inspect.isgetsetdescriptor(value)) and not name.startswith("__"):
                yield name
