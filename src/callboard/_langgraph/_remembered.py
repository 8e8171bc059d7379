"""Messages that were read before: to make them again from bytes takes most of the time that a long thread takes."""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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

_new = object.__new__

_set_fields, _set_extra, _set_names, _set_private = (
    vars(BaseModel)[slot].__set__
    for slot in ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
)


class _Pattern(NamedTuple):
    """A plain dict or list, to make others like it."""

    whole: Any
    """Without what could be changed in it."""
    shallow: Sequence[tuple[Any, Any]]
    """By key: the dicts and lists in it that have none in them."""
    deep: Sequence[tuple[Any, "_Pattern"]]
    """By key: the others."""
    size: int
    """Bytes that it takes."""

    def copied(self) -> Any:
        """Returns a copy; a change of one does not change the other."""
        made = self.whole.copy()
        for key, part in self.shallow:
            made[key] = part.copy()
        for key, pattern in self.deep:
            made[key] = pattern.copied()
        return made


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a message consists of; nobody else ever has its dicts and lists."""

    kind: type[BaseMessage]
    fields: _Pattern
    fields_set: set[str]
    size: int

    def message(self) -> BaseMessage:
        """The message, as if it had been read from its bytes."""
        made = _new(self.kind)
        _set_fields(made, self.fields.copied())
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
        self._found: OrderedDict[bytes, Remembered] = OrderedDict()
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

    def remembered(self, data: bytes) -> Remembered | None:
        """What is remembered of the message that some bytes are."""
        return self._found.get(data)

    def _keep(self, data: bytes, new: Remembered) -> None:
        with self._lock:
            if data in self._found:
                return  # another thread has read the same
            self._found[data] = new
            self._taken += new.size
            while self._taken > self._room:
                self._taken -= self._found.popitem(last=False)[1].size


def _remembered(made: Any, data: bytes) -> Remembered | None:
    """What to remember of a message that was just made; `None` if its bytes alone do not decide what it is."""
    if type(made) is not _kind(data) or made.__pydantic_extra__ != {} or made.__pydantic_private__ is not None:
        return None
    fields = _pattern(vars(made), set(), 0)
    if fields is None:
        return None
    fields_set = set(made.__pydantic_fields_set__)
    whole = fields.size + sys.getsizeof(fields_set) + 2 * sys.getsizeof(data)  # the bytes, and as much for the entry
    return Remembered(type(made), fields, fields_set, whole)


def _kind(data: bytes) -> type[BaseMessage] | None:
    """The kind of message that bytes name, if there is no other object in them."""
    try:
        content = ormsgpack.unpackb(data, option=ormsgpack.OPT_NON_STR_KEYS)  # without a hook, an object is an error
        return KINDS.get((content[0], content[1]))
    except Exception:  # an object, or no message: it is read as any other value is
        return None


def _pattern(value: Any, seen: set[int], depth: int) -> _Pattern | None:
    """A dict or list as a pattern, which has nothing of it that could be changed.

    Returns:
        `None` if it is not plain, or has a dict or list twice.
    """
    kind = type(value)
    if kind not in (dict, list) or id(value) in seen or depth > _DEEPEST:
        return None
    seen.add(id(value))
    whole, size = value.copy(), sys.getsizeof(value)
    shallow: list[tuple[Any, Any]] = []
    deep: list[tuple[Any, _Pattern]] = []
    for key, part in value.items() if kind is dict else enumerate(value):
        if type(key) not in _CONSTANT:
            return None
        size += sys.getsizeof(key)
        if type(part) in _CONSTANT:
            size += sys.getsizeof(part)
            continue
        if (pattern := _pattern(part, seen, depth + 1)) is None:
            return None
        whole[key] = None
        size += pattern.size
        if pattern.shallow or pattern.deep:
            deep.append((key, pattern))
        else:
            shallow.append((key, pattern.whole))
    return _Pattern(whole, shallow, deep, size)
