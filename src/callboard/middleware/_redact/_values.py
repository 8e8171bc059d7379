"""Every string of a nested value, put through a function. Knows no secrets."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import Interrupt, Send
from pydantic import BaseModel

Text = Callable[[str], str]
Named = Callable[[str, str], str]
"""From a dict key or a field's name, and the string under it, to another string."""

DEEPEST = 64
"""Levels of nesting that are looked into."""

TOO_DEEP = "[nested too deeply]"
_CYCLE = "[...]"
_SHORTEST_NUMBER = 10
"""Digits; what has fewer is no number of a card or an account."""

_IDENTITY = frozenset(("id", "tool_call_id", "type", "name", "status"))
"""Fields of messages that say whose they are."""


class Walk:
    """Puts every string of a value through a function, in copies; what that leaves alone is the same object after.

    It looks into dicts (keys too), lists, tuples, sets, dataclasses, pydantic models, messages and LangGraph's
    `Command`, `Send` and `Interrupt`, and takes long whole numbers for strings. It leaves out the ids and names of
    messages. Any other object stays as it is; what is nested deeper than 64 levels is cut off.

    Args:
        text: for strings.
        named: for strings that have a name; by default `text`.
        error: for exceptions; by default they stay as they are.
    """

    def __init__(
        self, text: Text, named: Named | None = None, error: Callable[[BaseException], BaseException] | None = None
    ) -> None:
        self._text = text
        self._named = named or (lambda _, value: text(value))
        self._error = error

    def __call__(self, value: Any) -> Any:
        """The value, or a copy of it with other strings."""
        walked = _Walked(self)
        result = walked.of(value)
        # A cycle is cut in the copy, so without a reason there is no copy.
        return result if walked.changed else value

    def text(self, value: str) -> str:
        return self._text(value)

    def named(self, name: str, value: str) -> str:
        return self._named(name, value)

    def error(self, value: BaseException) -> BaseException:
        return value if self._error is None else self._error(value)


class _Walked:
    """A value that is being walked through, and what has been made of it so far."""

    def __init__(self, walk: Walk) -> None:
        self.changed = False
        self._walk = walk
        # By identity, with the value itself: the identity of one that is gone is given to the next.
        self._done: dict[int, tuple[Any, Any]] = {}
        self._depth = 0

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._noted(value, self._walk.text(value))
        if isinstance(value, int):
            return self._number(value)
        if isinstance(value, BaseException):
            return self._noted(value, self._walk.error(value))
        rebuild = self._rebuild(value)
        return value if rebuild is None else self._inside(value, rebuild)

    def _noted(self, old: Any, new: Any) -> Any:
        if new is old or (isinstance(old, str) and new == old):
            return old
        self.changed = True
        return new

    def _number(self, value: int) -> Any:
        if isinstance(value, bool) or not 10 ** (_SHORTEST_NUMBER - 1) <= abs(value) < 10**64:
            return value
        digits = str(int(value))
        new = self._walk.text(digits)
        return value if new == digits else self._noted(value, new)

    def _rebuild(self, value: Any) -> Callable[[Any], Any] | None:
        """How to look into a value; `None` for one that has no inside."""
        if isinstance(value, dict):
            return self._dict
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._collection
        if isinstance(value, BaseMessage):
            return self._message
        if isinstance(value, BaseModel):
            return self._model
        if isinstance(value, Send):
            return self._send
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass
        return None

    def _inside(self, value: Any, rebuild: Callable[[Any], Any]) -> Any:
        if id(value) in self._done:
            return self._done[id(value)][1]
        if self._depth == DEEPEST:
            return self._noted(value, TOO_DEEP)
        self._done[id(value)] = value, _CYCLE
        self._depth += 1
        try:
            result = rebuild(value)
        finally:
            self._depth -= 1
        self._done[id(value)] = value, result
        return result

    def _named(self, name: object, value: Any) -> Any:
        if isinstance(name, str) and isinstance(value, str):
            return self._noted(value, self._walk.named(name, value))
        return self.of(value)

    def _dict(self, value: dict[Any, Any]) -> Any:
        items = [(self.of(name), self._named(name, item)) for name, item in value.items()]
        same = all(new[0] is old[0] and new[1] is old[1] for new, old in zip(items, value.items(), strict=True))
        return value if same else dict(items)

    def _collection(self, value: Any) -> Any:
        items = [self.of(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if isinstance(value, tuple):
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        kind = next(kind for kind in (list, set, frozenset) if isinstance(value, kind))
        return kind(items)

    def _fields(self, items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """The fields that have another value now."""
        pairs = ((name, old, self._named(name, old)) for name, old in items)
        return {name: new for name, old, new in pairs if new is not old}

    def _model(self, value: BaseModel) -> Any:
        changed = self._fields({**vars(value), **(value.__pydantic_extra__ or {})}.items())
        return value.model_copy(update=changed) if changed else value

    def _message(self, value: BaseMessage) -> Any:
        calls = {name: vars(value).get(name) or () for name in ("tool_calls", "invalid_tool_calls")}
        apart = _IDENTITY | calls.keys()
        items = {**vars(value), **(value.__pydantic_extra__ or {})}.items()
        changed = self._fields((name, item) for name, item in items if name not in apart)
        for name, old in calls.items():
            new = [self._call(call) for call in old]
            if any(one is not other for one, other in zip(new, old, strict=True)):
                changed[name] = new
        return value.model_copy(update=changed) if changed else value

    def _call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        args = self.of(call["args"])
        return call if args is call["args"] else {**call, "args": args}

    def _send(self, value: Send) -> Any:
        arg = self.of(value.arg)
        return value if arg is value.arg else Send(value.node, arg, timeout=value.timeout)

    def _dataclass(self, value: Any) -> Any:
        names = ["value"] if isinstance(value, Interrupt) else [field.name for field in fields(value)]
        changed = self._fields((name, getattr(value, name)) for name in names if hasattr(value, name))
        if not changed:
            return value
        changed_copy = copy.copy(value)
        for name, new in changed.items():
            object.__setattr__(changed_copy, name, new)
        return changed_copy
