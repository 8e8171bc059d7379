"""Cache of parsed messages by their bytes, and the packing of messages in LangGraph's format.

Parsing takes most of the time of loading a long thread. Packing has a fast path for messages with plain data only.
"""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, _msgpack_default, _option
from pydantic import BaseModel

# Packing


KINDS: dict[tuple[str, str], type[BaseMessage]] = {
    name: kind
    for kind in (HumanMessage, AIMessage, SystemMessage, ToolMessage)
    if (name := (kind.__module__, kind.__name__)) in SAFE_MSGPACK_TYPES
}
"""Message types of the fast path, by stored name: allowed for every reader, and created without users' code."""

_KNOWN = {kind: (name, frozenset(kind.model_fields)) for name, kind in KINDS.items()}
"""Stored name and field names of each message type."""

Dumps = Callable[[Any], tuple[str, bytes]]


_METHOD = "model_validate_json"

_AROUND = {
    kind: (ormsgpack.packb((*name, None, _METHOD))[: -1 - len(end)], end)
    for kind, (name, _fields) in _KNOWN.items()
    for end in [ormsgpack.packb(_METHOD)]
}
"""Packed bytes before and after the fields of a message, by type."""

_fields_of = vars(BaseModel)["__dict__"].__get__
"""Return the fields of a message like `vars()`, in a quarter of the time."""

_extra_of = attrgetter("__pydantic_extra__")


def dumped(value: Any, theirs: Dumps, pack: Callable[[Any], bytes] | None = None) -> tuple[str, bytes]:
    """Return a value as LangGraph's serializer stores it; `theirs` handles values that cannot be packed.

    `pack` replaces the function `packed`, if given.
    """
    if value is None or isinstance(value, (bytes, bytearray)):
        return theirs(value)
    try:
        return "msgpack", (pack or packed)(value)
    except ormsgpack.MsgpackEncodeError:
        return theirs(value)  # it may have a fallback, or raises a better error


def packed(value: Any) -> bytes:
    """Return a value packed as LangGraph packs it; raise `ormsgpack.MsgpackEncodeError` if that is impossible."""
    return ormsgpack.packb(value, default=_default, option=_option)


def _default(value: Any) -> Any:
    if not has_fields_only(value):
        return _msgpack_default(value)
    # pydantic's `model_dump`, which LangGraph uses, would copy the content first.
    name, _ = _KNOWN[type(value)]
    try:  # without a `default` function, any content that is not plain raises
        content = ormsgpack.packb((*name, _fields_of(value), _METHOD), option=_option)
    except ormsgpack.MsgpackEncodeError:
        return _msgpack_default(value)
    return ormsgpack.Ext(EXT_PYDANTIC_V2, content)


def has_fields_only(value: Any) -> bool:
    """Return whether a value is a message of a known type without extra fields: its fields determine its bytes."""
    known = _KNOWN.get(type(value))
    return known is not None and not value.__pydantic_extra__ and _fields_of(value).keys() <= known[1]


def fields_of_all(messages: Sequence[Any]) -> bytes | None:
    """Return the packed fields of all messages; `None` if one of them has an unknown type or is not plain."""
    if not _KNOWN.keys() >= {*map(type, messages)} or any(map(_extra_of, messages)):
        return None
    fields = [*map(_fields_of, messages)]
    try:
        return items_of(ormsgpack.packb(fields, option=_option), len(fields))
    except ormsgpack.MsgpackEncodeError:
        return None


def kind_and_fields(content: bytes) -> tuple[type[BaseMessage], bytes] | None:
    """Return the type of a packed message, and its fields as `fields_of_all` packs them; `None` for an unknown type."""
    for kind, (before, behind) in _AROUND.items():
        if content.startswith(before) and content.endswith(behind):
            return kind, content[len(before) : -len(behind)]
    return None


def contents_in(array: bytes) -> list[bytes | None]:
    """Return the packed content of each model in an array, and `None` for every other item."""
    items = ormsgpack.unpackb(array, ext_hook=lambda *ext: ext, option=ormsgpack.OPT_NON_STR_KEYS)
    return [item[1] if type(item) is tuple and item[0] == EXT_PYDANTIC_V2 else None for item in items]


def items_of(array: bytes, count: int) -> bytes:
    """Return the packed items of an array of this length, without its header."""
    return array[len(array_header(count)) :]


def array_header(count: int) -> bytes:
    """Return the msgpack header of an array of this length."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 2**16 else b"\xdd" + count.to_bytes(4)


ROOM = 32 * 1024 * 1024
"""Maximum size of the cached messages of one checkpointer, in bytes."""

_DEEPEST = 64
"""Maximum nesting depth of a cached message's content."""

_CONSTANT = frozenset((str, int, float, bool, bytes, type(None)))  # exact types: a subclass may be mutable

_new = object.__new__

# Cache


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
