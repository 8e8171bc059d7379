"""Caches for stored threads: parsed messages by their bytes, and whole conversations, in LangGraph's format.

Parsing takes most of the time of loading a long thread. Packing has a fast path for messages with plain data only.
With the cached conversation, a turn packs and parses only the messages that it adds. Users' code may have changed a
message in place, so the fields of all old messages are packed together and compared with the stored ones; this takes
much less time than packing the messages.
"""

import marshal
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from secrets import token_bytes
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
"""Message types with faster packing and parsing, by stored name: all readers allow them, and run no users' code."""

_KNOWN = {kind: (name, frozenset(kind.model_fields)) for name, kind in KINDS.items()}
"""Stored name and field names of each message type."""

Dumps = Callable[[Any], tuple[str, bytes]]


_METHOD = "model_validate_json"

_AROUND = {
    kind: (ormsgpack.packb((*name, None, _METHOD))[: -1 - len(end)], end)
    for kind, (name, _fields) in _KNOWN.items()
    for end in [ormsgpack.packb(_METHOD)]
}
"""Packed bytes before and after the fields of a message, by message type."""

_fields_of = vars(BaseModel)["__dict__"].__get__
"""Function that returns the fields of a message like `vars()`, in a quarter of the time."""

_extra_of = attrgetter("__pydantic_extra__")


def dumped(value: Any, theirs: Dumps, pack: Callable[[Any], bytes] | None = None) -> tuple[str, bytes]:
    """Return the format and bytes in which LangGraph stores a value; LangGraph's function `theirs` is the fallback."""
    if value is None or isinstance(value, (bytes, bytearray)):
        return theirs(value)
    try:
        return "msgpack", (pack or packed)(value)
    except ormsgpack.MsgpackEncodeError:
        # For values that `pack` refuses.
        return theirs(value)  # it may have a fallback, or raises a better error


def packed(value: Any) -> bytes:
    """Serialize a value to msgpack; return the same bytes that LangGraph's serializer would make."""
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
    """Return whether a value is a message of a known type without extra data: its bytes depend on its fields only."""
    known = _KNOWN.get(type(value))
    return known is not None and not value.__pydantic_extra__ and _fields_of(value).keys() <= known[1]


def fields_of_all(messages: Sequence[Any]) -> bytes | None:
    """Return the packed fields of all messages, without an array header; `None` for unknown types or extra data."""
    if not _KNOWN.keys() >= {*map(type, messages)} or any(map(_extra_of, messages)):
        return None
    fields = [*map(_fields_of, messages)]
    try:
        return items_of(ormsgpack.packb(fields, option=_option), len(fields))
    except ormsgpack.MsgpackEncodeError:
        return None


def kind_and_fields(content: bytes) -> tuple[type[BaseMessage], bytes] | None:
    """Return the type of a packed message, and its packed fields; `None` for a type that is not in `KINDS`."""
    for kind, (before, behind) in _AROUND.items():
        if content.startswith(before) and content.endswith(behind):
            return kind, content[len(before) : -len(behind)]
    return None


def contents_in(array: bytes) -> list[bytes | None]:
    """Return the packed content of each pydantic model in a packed array, and `None` for every other item."""
    items = ormsgpack.unpackb(array, ext_hook=lambda *ext: ext, option=ormsgpack.OPT_NON_STR_KEYS)
    return [item[1] if type(item) is tuple and item[0] == EXT_PYDANTIC_V2 else None for item in items]


def items_of(array: bytes, count: int) -> bytes:
    return array[len(array_header(count)) :]


def array_header(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 2**16 else b"\xdd" + count.to_bytes(4)


ROOM = 32 * 1024 * 1024
"""Maximum size of one cache, in bytes. Each checkpointer has one cache of messages and one of conversations."""

_new = object.__new__

# Cache


# The slots of pydantic's BaseModel, set directly: a copy needs no validation, which takes most of the time.
_set_fields, _set_extra, _set_names, _set_private = (
    vars(BaseModel)[slot].__set__
    for slot in ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
)


@dataclass(frozen=True, slots=True)
class Remembered:
    """Template of a parsed message, from which equal messages are created quickly."""

    kind: type[BaseMessage]
    fields: bytes
    """Fields of the message in the format of `marshal`, which accepts plain data only."""
    fields_set: frozenset[str]
    size: int
    """Memory that the template takes, in bytes."""

    def message(self) -> BaseMessage:
        """Return a new message that equals the parsed one, and shares no dicts or lists with other messages."""
        made = _new(self.kind)
        _set_fields(made, marshal.loads(self.fields))  # noqa: S302 (made by this process, from plain data)
        _set_extra(made, {})
        _set_names(made, set(self.fields_set))
        _set_private(made, None)
        return made


class MessageMemory:
    """LRU cache of parsed messages, by their packed bytes; at most `room` bytes. Thread-safe.

    Each reader gets a new message.

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
        """Return the object in a msgpack extension, given by code and bytes; `make` parses it if it is not cached."""
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
        """Return whether a msgpack extension is a cached message, which needs no check of its type."""
        return code == EXT_PYDANTIC_V2 and data in self._found

    def remembered(self, data: bytes) -> Remembered | None:
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
    """Return a template for copies of a parsed message; `None` if `data` alone does not determine the message."""
    if type(made) is not _kind(data) or made.__pydantic_extra__ != {} or made.__pydantic_private__ is not None:
        return None
    try:
        fields = marshal.dumps(vars(made))
    except ValueError:  # nested too deeply
        return None
    # The key, and as much for the entry.
    size = len(fields) + sum(map(sys.getsizeof, made.__pydantic_fields_set__)) + 2 * sys.getsizeof(data)
    return Remembered(type(made), fields, frozenset(made.__pydantic_fields_set__), size)


def _kind(data: bytes) -> type[BaseMessage] | None:
    """Return the type of a packed message; `None` for an unknown type, or if the message contains other objects."""
    try:
        content = ormsgpack.unpackb(data, option=ormsgpack.OPT_NON_STR_KEYS)  # without a hook, any object is an error
        return KINDS.get((content[0], content[1]))
    except Exception:  # contains an object, or is no message: parsed like any other value
        return None


# Conversations


SHORTEST = 8
"""Minimum number of messages of a cached conversation; caching a shorter one costs more than it saves."""

_BRANCHES = 4
"""Maximum number of cached conversations of one stored thread, which may have several message lists and branches."""

_CHANNELS = "channel_values"

_NIL = b"\xc0"

_HOLE = ormsgpack.Ext(127, token_bytes(16))
"""Placeholder for the conversation while the rest of a value is packed; 16 random bytes, so no user's value contains
it."""

_MARK = ormsgpack.packb(_HOLE)

Loads = Callable[[bytes], Any]
"""Function that parses packed bytes into a value."""


class _Known(NamedTuple):
    """Beginning of a stored conversation: the messages that have been parsed already."""

    messages: tuple[Remembered, ...] = ()
    end: int = 0
    """Length of the parsed messages in the packed conversation, in bytes."""
    size: int = 0
    """Memory that the parsed messages take, in bytes."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """Stored value that contains a conversation; immutable, because several OS threads share it."""

    data: bytes
    channel: str | None
    """Name of the checkpoint's channel with the conversation; `None` if the value itself is the conversation."""
    span: range
    """Position of the messages in `data`, behind the array header that states their number."""
    first: Any
    """Id of the first message."""
    kinds: list[type]
    fields: bytes
    """Fields of all messages, packed together."""
    known: _Known

    @property
    def size(self) -> int:
        return len(self.data) + len(self.fields) + 16 * len(self.kinds) + self.known.size

    @property
    def messages(self) -> bytes:
        """Packed messages of the conversation, without the array header."""
        return self.data[self.span.start : self.span.stop]

    def begins(self, messages: list[Any]) -> bool:
        """Return whether a list of messages begins with all messages of this conversation, unchanged."""
        # Types as well as fields: two kinds of messages may have equal fields.
        old = messages[: len(self.kinds)]
        return [*map(type, old)] == self.kinds and fields_of_all(old) == self.fields

    def behind(self, old: "_Stored") -> "_Stored":
        """Return a copy for a longer conversation: the messages of `old`, followed by the messages of this value."""
        return replace(self, kinds=old.kinds + self.kinds, fields=old.fields + self.fields, known=old.known)

    def value(self, messages: list[Any], loads: Loads) -> Any:
        """Return the stored value with `messages`, which are parsed already; `loads` parses the rest of its bytes."""
        if self.channel is None:
            return messages
        head = self.span.start - len(array_header(len(self.kinds)))
        value = loads(self.data[:head] + _NIL + self.data[self.span.stop :])
        value[_CHANNELS][self.channel] = messages
        return value


class StoredConversations:
    """LRU cache of the conversations of one checkpointer, at most `room` bytes; thread-safe."""

    def __init__(self, memory: MessageMemory, room: int = ROOM) -> None:
        self.memory = memory
        self._room = room
        # `_taken` is the sum of the sizes in `_places`; both change only under the lock.
        self._taken = 0
        self._places: OrderedDict[Hashable, dict[Any, _Stored]] = OrderedDict()
        self._lock = threading.Lock()

    def at(self, place: Hashable) -> "StoredConversation":
        """Return the packer and parser for values at one location in the database, such as a conversation thread."""
        return StoredConversation(self, place)

    def stored(self, place: Hashable) -> dict[Any, _Stored]:
        """Return the conversations cached for one database location, in a dict by the id of the first message."""
        with self._lock:
            if place not in self._places:
                return {}
            self._places.move_to_end(place)
            return self._places[place].copy()  # a copy: the caller iterates while other threads store

    def keep(self, place: Hashable, new: _Stored) -> None:
        """Add a conversation to the cache, and replace the previous one with the same first message."""
        with self._lock:
            branches = self._places.setdefault(place, {})
            if (old := branches.pop(new.first, None)) is not None:
                self._taken -= old.size
            branches[new.first] = new
            self._taken += new.size
            if len(branches) > _BRANCHES:
                self._taken -= branches.pop(next(iter(branches))).size
            self._places.move_to_end(place)
            while self._taken > self._room:
                self._taken -= sum(one.size for one in self._places.popitem(last=False)[1].values())


class StoredConversation:
    """Packer and parser for values at one location in the database, such as a thread; uses the checkpointer's cache."""

    def __init__(self, kept: StoredConversations, place: Hashable) -> None:
        self._kept = kept
        self._place = place

    def packed(self, value: Any, check: Callable[[bytes], object] = lambda _data: None) -> bytes:
        """Serialize a value as LangGraph does, with cached bytes of old messages; `check` gets the new bytes."""
        channel, messages = _conversation_in(value)
        if not messages:
            data = packed(value)
            check(data)
            return data
        old = self._unchanged(messages)
        new = messages if old is None else messages[len(old.kinds) :]
        # The old messages are taken from the stored bytes; the rest of the value and the new messages are packed.
        head, _, tail = packed(_with_hole(value, channel)).partition(_MARK)
        added = packed(new)
        check(head + _NIL + tail)
        check(added)
        head += array_header(len(messages))
        data = b"".join((head, b"" if old is None else old.messages, items_of(added, len(new)), tail))
        if (plain := _plain(new, added)) is not None:
            span = range(len(head), len(data) - len(tail))
            stored = _Stored(data, channel, span, messages[0].id, *plain, _Known())
            self._kept.keep(self._place, stored if old is None else stored.behind(old))
        return data

    def _unchanged(self, messages: list[Any]) -> _Stored | None:
        stored = self._kept.stored(self._place).get(messages[0].id)
        return stored if stored is not None and stored.begins(messages) else None

    def read(self, data: bytes, loads: Loads) -> Any:
        """Return the value that stored bytes contain; `loads` parses the parts that are not cached."""
        stored = self._found(data)
        return loads(data) if stored is None else stored.value(self._messages(stored, loads), loads)

    def outlined(self, data: bytes, loads: Loads) -> Any:
        """Return the value that stored bytes contain, with `None` in place of each message."""
        stored = self._found(data)
        return loads(data) if stored is None else stored.value([None] * len(stored.kinds), loads)

    def _found(self, data: bytes) -> _Stored | None:
        # The whole bytes are compared: another process may have stored something else since.
        return next((one for one in self._kept.stored(self._place).values() if one.data == data), None)

    def _messages(self, stored: _Stored, loads: Loads) -> list[Any]:
        messages: list[Any] = [one.message() for one in stored.known.messages]
        if left := len(stored.kinds) - len(messages):
            unread = array_header(left) + stored.messages[stored.known.end :]
            messages += loads(unread)
            self._kept.keep(self._place, replace(stored, known=self._further(stored.known, unread)))
        return messages

    def _further(self, known: _Known, unread: bytes) -> _Known:
        """Return a copy of `known` (parsed messages), extended by messages in `unread` that are in the cache."""
        messages, end, size = [*known.messages], known.end, known.size
        for content in contents_in(unread):
            if content is None or (one := self._kept.memory.remembered(content)) is None:
                break
            messages.append(one)
            end += len(ormsgpack.packb(ormsgpack.Ext(EXT_PYDANTIC_V2, content)))
            size += one.size
        return _Known((*messages,), end, size)


def _conversation_in(value: Any) -> tuple[str | None, list[Any]]:
    """Return the channel (`None`: the value itself) and the messages of the longest conversation in a value."""
    channels = value.get(_CHANNELS) if type(value) is dict else None
    lists = channels.items() if type(channels) is dict else [(None, value)]
    long = [(name, found) for name, found in lists if type(found) is list and len(found) >= SHORTEST]
    known = [(name, found) for name, found in long if type(found[0]) in KINDS.values()]
    name, found = max(known, key=lambda pair: len(pair[1]), default=(None, []))
    return name, [*found]  # a copy: users' code in another thread may append to the list meanwhile


def _plain(messages: list[Any], packed_so: bytes) -> tuple[list[type], bytes] | None:
    """Return the types and the packed fields of messages; `None` if one message has more data than its fields."""
    # Read from the packed bytes, not from the messages: users' code in another thread may change a message meanwhile.
    found = [None if content is None else kind_and_fields(content) for content in contents_in(packed_so)]
    plain = [one for one in found if one is not None]
    if len(plain) < len(messages) or not all(map(has_fields_only, messages)):
        return None
    return [kind for kind, _ in plain], b"".join(fields for _, fields in plain)


def _with_hole(value: Any, channel: str | None) -> Any:
    return _HOLE if channel is None else {**value, _CHANNELS: {**value[_CHANNELS], channel: _HOLE}}
