"""Messages that were read before: to make them again from bytes takes most of the time that a long thread takes."""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ormsgpack
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2
from pydantic import BaseModel

from callboard._langgraph._packed import KINDS

ROOM = 32 * 1024 * 1024
"""How many bytes the messages of one checkpointer take at most."""

_DEEPEST = 64
"""Levels of what a message has in it; what is deeper is not remembered."""

_CONSTANT = frozenset((str, int, float, bool, bytes, type(None)))

_set_extra, _set_names, _set_private = (
    vars(BaseModel)[f"__pydantic_{slot}__"].__set__ for slot in ("extra", "fields_set", "private")
)


@dataclass(frozen=True, slots=True)
class _Remembered:
    """What a message consists of; nobody else ever has its dicts and lists."""

    kind: type[BaseMessage]
    fields: dict[str, Any]
    changeable: tuple[str, ...]
    fields_set: set[str]
    size: int

    def message(self) -> BaseMessage:
        """The message, as if it had been read from its bytes."""
        fields = self.fields.copy()
        for name in self.changeable:
            value = fields[name]
            fields[name] = _copied(value) if value else type(value)()
        made = self.kind.__new__(self.kind)
        object.__setattr__(made, "__dict__", fields)
        _set_extra(made, {})
        _set_names(made, self.fields_set.copy())
        _set_private(made, None)
        return made


class MessageMemory:
    """The messages that were read lately, by their bytes; each who reads one has a copy of their own.

    A message is remembered if its bytes alone decide what it is: if it is of one of LangChain's kinds, and all that
    is in it is plain. What cannot be read is not remembered, so it is the same error each time. May be used by
    several threads.

    Args:
        room: how many bytes they take at most; those that were not read for longest make room for others.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._taken = 0
        self._found: OrderedDict[bytes, _Remembered] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, code: int, data: bytes, make: Callable[[int, bytes], Any]) -> Any:
        """What some bytes stand for.

        Args:
            code: of an extension of msgpack, as LangGraph uses them.
            data: its content.
            make: what makes it, if it is not remembered.
        """
        if code != EXT_PYDANTIC_V2:
            return make(code, data)
        with self._lock:
            found = self._found.get(data)
            if found is not None:
                self._found.move_to_end(data)
        if found is not None:
            return found.message()
        made = make(code, data)
        new = _remembered(made, data)
        if new is not None and new.size <= self._room:
            self._keep(data, new)
        return made

    def knows(self, code: int, data: bytes) -> bool:
        """Whether some bytes are a message that was read, which anybody may read."""
        return code == EXT_PYDANTIC_V2 and data in self._found

    def _keep(self, data: bytes, new: _Remembered) -> None:
        with self._lock:
            if data in self._found:
                return  # another thread has read the same
            self._found[data] = new
            self._taken += new.size
            while self._taken > self._room:
                self._taken -= self._found.popitem(last=False)[1].size


def _remembered(made: Any, data: bytes) -> _Remembered | None:
    """What to remember of a message that was just made; `None` if its bytes alone do not decide what it is."""
    if type(made) is not _kind(data) or made.__pydantic_extra__ != {} or made.__pydantic_private__ is not None:
        return None
    fields = vars(made)
    size = _size(fields, set(), 0)
    if size is None:
        return None
    changeable = tuple(name for name, value in fields.items() if type(value) not in _CONSTANT)
    fields_set = set(made.__pydantic_fields_set__)
    whole = size + sys.getsizeof(fields_set) + 2 * sys.getsizeof(data)  # the bytes, and as much for the entry
    return _Remembered(type(made), _copied(fields), changeable, fields_set, whole)


def _kind(data: bytes) -> type[BaseMessage] | None:
    """The kind of message that bytes name, if there is no other object in them."""
    try:
        content = ormsgpack.unpackb(data, option=ormsgpack.OPT_NON_STR_KEYS)  # without a hook, an object is an error
        return KINDS.get((content[0], content[1]))
    except Exception:
        return None


def _size(value: Any, seen: set[int], depth: int) -> int | None:
    """Bytes that a value takes; `None` if it is not plain, or has a dict or list twice."""
    kind = type(value)
    size = sys.getsizeof(value)
    if kind in _CONSTANT:
        return size
    if kind not in (dict, list) or id(value) in seen or depth > _DEEPEST:
        return None
    seen.add(id(value))
    for part in (*value, *value.values()) if kind is dict else value:
        of_part = _size(part, seen, depth + 1)
        if of_part is None:
            return None
        size += of_part
    return size


def _copied(value: Any) -> Any:
    """A dict or list of which a change does not change the other."""
    if type(value) is dict:
        return {key: part if type(part) in _CONSTANT else _copied(part) for key, part in value.items()}
    return [part if type(part) in _CONSTANT else _copied(part) for part in value]
