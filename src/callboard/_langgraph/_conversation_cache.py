"""Cache of stored conversations, so that a turn packs and parses only the messages that it adds.

Users' code may have changed a message in place. So the fields of all old messages are packed together and compared
with the stored ones, which takes much less time than packing the messages.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from secrets import token_bytes
from typing import Any, NamedTuple

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2

from callboard._langgraph._message_cache import (
    KINDS,
    MessageMemory,
    Remembered,
    array_header,
    contents_in,
    fields_of_all,
    has_fields_only,
    items_of,
    kind_and_fields,
    packed,
)

ROOM = 32 * 1024 * 1024
"""Maximum size of the cached conversations of one checkpointer, in bytes."""

SHORTEST = 8
"""Minimum number of messages of a cached conversation; for shorter ones the cache costs more than it saves."""

_BRANCHES = 4
"""Maximum number of cached conversations per thread, which may have several message lists and branches."""

_CHANNELS = "channel_values"

_NIL = b"\xc0"

_HOLE = ormsgpack.Ext(127, token_bytes(16))
"""Placeholder for the conversation in the packed rest of a value; 16 random bytes, so no user's value contains it."""

_MARK = ormsgpack.packb(_HOLE)

Loads = Callable[[bytes], Any]
"""Function that parses packed bytes into a value."""


class _Known(NamedTuple):
    """First messages of a conversation, as far as they were parsed."""

    messages: tuple[Remembered, ...] = ()
    end: int = 0
    """Length of these messages in the packed conversation, in bytes."""
    size: int = 0
    """Memory that these messages take, in bytes."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """Value with a conversation, as it was last stored; immutable, because several threads share it."""

    data: bytes
    channel: str | None
    """Channel of the checkpoint that is the conversation; `None` if the value itself is the conversation."""
    span: range
    """Position of the messages in `data`, without the array header that has their number."""
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
        """Packed messages."""
        return self.data[self.span.start : self.span.stop]

    def begins(self, messages: list[Any]) -> bool:
        """Return whether a list begins with the messages of the conversation, all of them unchanged."""
        # Types as well as fields: two kinds of messages may have equal fields.
        old = messages[: len(self.kinds)]
        return [*map(type, old)] == self.kinds and fields_of_all(old) == self.fields

    def behind(self, old: "_Stored") -> "_Stored":
        """Return a copy with the kinds and fields of an older, shorter conversation put in front."""
        return replace(self, kinds=old.kinds + self.kinds, fields=old.fields + self.fields, known=old.known)

    def value(self, messages: list[Any], loads: Loads) -> Any:
        """Return the value with `messages` as its conversation; only the rest of the value is parsed."""
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
        """Return the view of one place, such as a thread."""
        return StoredConversation(self, place)

    def stored(self, place: Hashable) -> dict[Any, _Stored]:
        """Return the conversations last stored at a place, by the id of the first message."""
        with self._lock:
            if place not in self._places:
                return {}
            self._places.move_to_end(place)
            return self._places[place].copy()  # a copy: the caller iterates while other threads store

    def keep(self, place: Hashable, new: _Stored) -> None:
        """Store a conversation, and replace the previous one with the same first message."""
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
    """Packing and parsing of the values of one place, with the cache of its checkpointer."""

    def __init__(self, kept: StoredConversations, place: Hashable) -> None:
        self._kept = kept
        self._place = place

    def packed(self, value: Any, check: Callable[[bytes], object] = lambda _data: None) -> bytes:
        """Return a value in LangGraph's format, byte for byte as LangGraph packs it.

        `check` validates the bytes that were not stored before; raises `ormsgpack.MsgpackEncodeError` like `packed`.
        """
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
        """Return the stored conversation if the list begins with its messages, unchanged."""
        stored = self._kept.stored(self._place).get(messages[0].id)
        return stored if stored is not None and stored.begins(messages) else None

    def read(self, data: bytes, loads: Loads) -> Any:
        """Return the value of stored bytes; `loads` parses the parts that are not cached."""
        stored = self._found(data)
        return loads(data) if stored is None else stored.value(self._messages(stored, loads), loads)

    def outlined(self, data: bytes, loads: Loads) -> Any:
        """Return the value of stored bytes with `None` in place of each message."""
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
        """Return the known messages extended by parsed ones, up to the first that the memory does not have."""
        messages, end, size = [*known.messages], known.end, known.size
        for content in contents_in(unread):
            if content is None or (one := self._kept.memory.remembered(content)) is None:
                break
            messages.append(one)
            end += len(ormsgpack.packb(ormsgpack.Ext(EXT_PYDANTIC_V2, content)))
            size += one.size
        return _Known((*messages,), end, size)


def _conversation_in(value: Any) -> tuple[str | None, list[Any]]:
    """Return the channel and the messages of the longest conversation in a value; an empty list if there is none."""
    channels = value.get(_CHANNELS) if type(value) is dict else None
    lists = channels.items() if type(channels) is dict else [(None, value)]
    long = [(name, found) for name, found in lists if type(found) is list and len(found) >= SHORTEST]
    known = [(name, found) for name, found in long if type(found[0]) in KINDS.values()]
    name, found = max(known, key=lambda pair: len(pair[1]), default=(None, []))
    return name, [*found]  # a copy: users' code in another thread may append to the list meanwhile


def _plain(messages: list[Any], packed_so: bytes) -> tuple[list[type], bytes] | None:
    """Return the types of messages and their packed fields; `None` if a message is not plain or not of a known type."""
    # Read from the packed bytes, not from the messages: users' code in another thread may change a message meanwhile.
    found = [None if content is None else kind_and_fields(content) for content in contents_in(packed_so)]
    plain = [one for one in found if one is not None]
    if len(plain) < len(messages) or not all(map(has_fields_only, messages)):
        return None
    return [kind for kind, _ in plain], b"".join(fields for _, fields in plain)


def _with_hole(value: Any, channel: str | None) -> Any:
    return _HOLE if channel is None else {**value, _CHANNELS: {**value[_CHANNELS], channel: _HOLE}}
