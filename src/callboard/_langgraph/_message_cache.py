"""Cache of parsed messages by their bytes; parsing takes most of the time of loading a long thread."""

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
"""Maximum size of the cached messages of one checkpointer, in bytes."""

_DEEPEST = 64
"""Maximum nesting depth of a cached message's content."""

_CONSTANT = frozenset((str, int, float, bool, bytes, type(None)))  # exact types: a subclass may be mutable

_new = object.__new__

# The slots of pydantic's BaseModel, set directly: a copy needs no validation, which takes most of the time.
_set_fields, _set_extra, _set_names, _set_private = (
    vars(BaseModel)[slot].__set__
    for slot in ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
)


class _Pattern(NamedTuple):
    """Template of a plain dict or list, from which deep copies are made quickly."""

    whole: Any
    """Dict or list with `None` in place of mutable values."""
    shallow: Sequence[tuple[Any, Any]]
    """Keys and values of the dicts and lists that contain only constants."""
    deep: Sequence[tuple[Any, "_Pattern"]]
    """Keys and templates of all other dicts and lists."""
    size: int
    """Memory in bytes."""

    def copied(self) -> Any:
        """Return a deep copy."""
        made = self.whole.copy()
        for key, part in self.shallow:
            made[key] = part.copy()
        for key, pattern in self.deep:
            made[key] = pattern.copied()
        return made


@dataclass(frozen=True, slots=True)
class Remembered:
    """Template of a message; its dicts and lists are never given to other code."""

    kind: type[BaseMessage]
    fields: _Pattern
    fields_set: set[str]
    size: int

    def message(self) -> BaseMessage:
        """Return a new message, equal to one that is parsed from the bytes."""
        made = _new(self.kind)
        _set_fields(made, self.fields.copied())
        _set_extra(made, {})
        _set_names(made, self.fields_set.copy())
        _set_private(made, None)
        return made


class MessageMemory:
    """LRU cache of parsed messages by their bytes, at most `room` bytes; each reader gets a copy. Thread-safe.

    A message is cached only if its bytes alone determine it: it has one of LangChain's types and plain content. Errors
    are not cached, so that damaged bytes raise the same error each time.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        # `_taken` is the sum of the sizes in `_found`; both change only under the lock.
        self._taken = 0
        self._found: OrderedDict[bytes, Remembered] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, code: int, data: bytes, make: Callable[[int, bytes], Any]) -> Any:
        """Return the object of a msgpack extension with this code and content; `make` parses it if it is not cached."""
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
        """Return whether the bytes are a cached message; its type is allowed for every reader."""
        return code == EXT_PYDANTIC_V2 and data in self._found

    def remembered(self, data: bytes) -> Remembered | None:
        """Return the template of the message with these bytes, if it is cached."""
        return self._found.get(data)

    def _keep(self, data: bytes, new: Remembered) -> None:
        with self._lock:
            if data in self._found:
                return  # another thread has parsed the same message meanwhile
            self._found[data] = new
            self._taken += new.size
            while self._taken > self._room:
                self._taken -= self._found.popitem(last=False)[1].size


def _remembered(made: Any, data: bytes) -> Remembered | None:
    """Return the template of a parsed message; `None` if its bytes alone do not determine it."""
    if type(made) is not _kind(data) or made.__pydantic_extra__ != {} or made.__pydantic_private__ is not None:
        return None
    fields = _pattern(vars(made), set(), 0)
    if fields is None:
        return None
    fields_set = set(made.__pydantic_fields_set__)
    whole = fields.size + sys.getsizeof(fields_set) + 2 * sys.getsizeof(data)  # the key, and as much for the entry
    return Remembered(type(made), fields, fields_set, whole)


def _kind(data: bytes) -> type[BaseMessage] | None:
    """Return the message type that the bytes name; `None` if they contain any other object."""
    try:
        content = ormsgpack.unpackb(data, option=ormsgpack.OPT_NON_STR_KEYS)  # without a hook, any object is an error
        return KINDS.get((content[0], content[1]))
    except Exception:  # contains an object, or is no message: parsed like any other value
        return None


def _pattern(value: Any, seen: set[int], depth: int) -> _Pattern | None:
    """Return the template of a dict or list; `None` if it is not plain, or contains the same dict or list twice."""
    # The same object twice (or a cycle) would become two objects in a copy, which could then be changed separately.
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
