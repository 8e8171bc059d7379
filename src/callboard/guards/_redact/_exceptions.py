"""Removal of secrets from exceptions, in place if possible, so that their types stay."""

import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from callboard.exceptions import CallboardError
from callboard.guards._redact._values import Named, Text, Walk
from callboard.tools._ledger import CallsInterrupted

_DEEPEST = 32
"""Maximum depth of causes and groups. Deeper errors are replaced, and only their type names are kept."""

_IDENTITY = frozenset(("tool", "call_id", "tool_call_id"))
"""Attributes that identify the call. They stay, because callers match on them."""


class RedactedError(CallboardError):
    """Stands for an error whose own text could not be cleared of secrets.

    `original` is the name of the error's type. `args[0]` is that name and the text, with tokens for secrets.
    """

    def __init__(self, original: str, text: str) -> None:
        self.original = original
        super().__init__(f"{original}: {text}" if text else original)


class Clearing:
    """Replaces secrets in exceptions, and in their causes, contexts, members and attributes.

    Args:
        text: a function that returns a text without secrets.
        named: the same for a text under a name.
    """

    def __init__(self, text: Text, named: Named) -> None:
        self._text = text
        self._named = named
        # Keyed by `id()`. The error itself is kept as well, because the id of a freed object may be reused.
        self._done: dict[int, tuple[BaseException, BaseException]] = {}
        self._depth = 0

    def of(self, error: BaseException) -> BaseException:
        """Return the cleared error, or a `RedactedError` if its `str` or `repr` still shows secrets."""
        if id(error) in self._done:
            return self._done[id(error)][1]
        if self._depth == _DEEPEST:
            return RedactedError(type(error).__qualname__, "")
        # Registered before its parts are visited: causes and contexts may form a cycle.
        self._done[id(error)] = error, error
        self._depth += 1
        try:
            cleared = self._cleared(error)
        finally:
            self._depth -= 1
        self._done[id(error)] = error, cleared
        return cleared

    def copy(self, error: BaseException) -> BaseException:
        """Return the error, or a stand-in if it shows secrets. The error is not changed: somebody else may own it."""
        return error if self._is_clear(error) else self._stand_in(error)

    def control_flow(self, error: Exception) -> None:
        """Clear the interrupts or the command that control flow carries, in place; its type must not change."""
        error.args = self._walk(error.args)
        if isinstance(error, CallsInterrupted):
            error.interrupts = error.args[0]

    def _walk(self, value: Any) -> Any:
        # A new walk each time: a stored one would form a reference cycle with this object and all errors.
        return Walk(self._text, self._named, self.of)(value)

    def _cleared(self, error: BaseException) -> BaseException:
        if isinstance(error, BaseExceptionGroup):
            cleared = self._group(error)
        else:
            self._in_place(error)
            cleared = error if self._is_clear(error) else self._stand_in(error)
        if cleared is not error:
            cleared.__traceback__ = error.__traceback__
            for note in getattr(error, "__notes__", ()):
                cleared.add_note(self._text(str(note)))
        self._chain(error, cleared)
        return cleared

    def _in_place(self, error: BaseException) -> None:
        """Clear everything that can be assigned; `_is_clear()` checks afterwards whether that was enough."""
        for name in ("args", *_slots(type(error))):
            with suppress(Exception):  # unset, or read only
                value = getattr(error, name)
                if (new := self._walk(value)) is not value:
                    setattr(error, name, new)
        self._attributes(error)

    def _attributes(self, error: BaseException) -> None:
        for name, value in vars(error).items():
            if name not in _IDENTITY:
                vars(error)[name] = self._walk(value)

    def _is_clear(self, error: BaseException) -> bool:
        # Clearing a text again must change nothing. A `__str__` may use data that cannot be assigned.
        return all(self._text(text) == text for text in _texts(error))

    def _stand_in(self, error: BaseException) -> RedactedError:
        return RedactedError(type(error).__qualname__, self._text(next(_texts(error), "")))

    def _group(self, group: BaseExceptionGroup[Any]) -> BaseException:
        members = [self.of(error) for error in group.exceptions]
        message = self._text(group.message)
        if message != group.message:
            return BaseExceptionGroup(message, members)
        self._attributes(group)
        same = all(new is old for new, old in zip(members, group.exceptions, strict=True))
        return group if same else group.derive(members)

    def _chain(self, error: BaseException, cleared: BaseException) -> None:
        cause, context, hidden = error.__cause__, error.__context__, error.__suppress_context__
        cleared.__cause__ = None if cause is None else self.of(cause)
        cleared.__context__ = None if context is None else self.of(context)
        cleared.__suppress_context__ = hidden


def _texts(error: BaseException) -> Iterator[str]:
    """Yield the texts that logs and models may show of an exception."""
    for show in (str, repr):
        try:
            yield show(error)
        except Exception:  # noqa: S112 (then nobody can read it either)
            continue


def _slots(kind: type) -> Iterator[str]:
    """Yield attributes that are not in `__dict__`: `__slots__`, and built-in ones such as `OSError.filename`."""
    for base in kind.__mro__:
        if base in (BaseException, object):
            continue
        for name, value in vars(base).items():
            if (inspect.ismemberdescriptor(value) or inspect.isgetsetdescriptor(value)) and not name.startswith("__"):
                yield name
