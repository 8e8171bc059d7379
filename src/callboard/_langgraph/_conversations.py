"""Conversations as they were last stored: a turn adds to the end, and what was there is not packed again, nor made.

Somebody may have changed a message in place, so all are compared with what was stored; that is done in one go.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from secrets import token_bytes
from typing import Any, NamedTuple

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2

from callboard._langgraph._packed import (
    KINDS,
    array_header,
    contents_in,
    fields_of_all,
    has_fields_only,
    items_of,
    kind_and_fields,
    packed,
)
from callboard._langgraph._remembered import MessageMemory, Remembered

ROOM = 32 * 1024 * 1024
"""How many bytes the conversations of one checkpointer take at most."""

SHORTEST = 8
"""Messages of a conversation for which it is worth it."""

_BRANCHES = 4
"""How many conversations of one place are kept: a state may have several, and a thread may have branches."""

_CHANNELS = "channel_values"

_NIL = b"\xc0"

_HOLE = ormsgpack.Ext(127, token_bytes(16))
"""Stands for the conversation where the rest of a value is packed; no value of anybody's can have it in it."""

_MARK = ormsgpack.packb(_HOLE)

Loads = Callable[[bytes], Any]
"""Reads a value."""


class _Known(NamedTuple):
    """The first messages of a conversation, as far as they were read."""

    messages: tuple[Remembered, ...] = ()
    end: int = 0
    """How many of its bytes they are."""
    size: int = 0
    """What they take."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A value with a conversation in it, as it was last stored."""

    data: bytes
    channel: str | None
    """Which channel of a checkpoint the conversation is; `None` if it is the value itself."""
    span: range
    """Where in the data it is, without what says how many messages there are."""
    first: Any
    """The id of its first message."""
    kinds: list[type]
    fields: bytes
    """Those of all its messages, packed in one go."""
    known: _Known

    @property
    def size(self) -> int:
        return len(self.data) + len(self.fields) + 16 * len(self.kinds) + self.known.size

    @property
    def messages(self) -> bytes:
        """The bytes of its messages."""
        return self.data[self.span.start : self.span.stop]

    def begins(self, messages: list[Any]) -> bool:
        """Whether messages begin with those of the conversation, and none of these was changed."""
        old = messages[: len(self.kinds)]
        return [*map(type, old)] == self.kinds and fields_of_all(old) == self.fields

    def behind(self, old: "_Stored") -> "_Stored":
        """Returns these kinds and fields, behind those of another conversation."""
        return replace(self, kinds=old.kinds + self.kinds, fields=old.fields + self.fields, known=old.known)

    def value(self, messages: list[Any], loads: Loads) -> Any:
        """The value, with these messages in it."""
        if self.channel is None:
            return messages
        head = self.span.start - len(array_header(len(self.kinds)))
        value = loads(self.data[:head] + _NIL + self.data[self.span.stop :])
        value[_CHANNELS][self.channel] = messages
        return value


class StoredConversations:
    """The conversations that were stored with a checkpointer; several threads may use it.

    Args:
        memory: of the messages in them.
        room: how many bytes they take at most; those that were not used for longest make room for others.
    """

    def __init__(self, memory: MessageMemory, room: int = ROOM) -> None:
        self.memory = memory
        self._room = room
        self._taken = 0
        self._places: OrderedDict[Hashable, dict[Any, _Stored]] = OrderedDict()
        self._lock = threading.Lock()

    def at(self, place: Hashable) -> "StoredConversation":
        """What is stored at a place, such as a thread."""
        return StoredConversation(self, place)

    def stored(self, place: Hashable) -> dict[Any, _Stored]:
        """What was last stored there, by the id of the first message."""
        with self._lock:
            if place not in self._places:
                return {}
            self._places.move_to_end(place)
            return self._places[place].copy()

    def keep(self, place: Hashable, new: _Stored) -> None:
        """Keep what is stored there, in place of what was."""
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
    """Packs and reads values of one place.

    Args:
        kept: what was stored with the same checkpointer.
        place: which.
    """

    def __init__(self, kept: StoredConversations, place: Hashable) -> None:
        self._kept = kept
        self._place = place

    def packed(self, value: Any, check: Callable[[bytes], object] = lambda _data: None) -> bytes:
        """A value as LangGraph packs it.

        Args:
            value: any.
            check: looks at what was not stored before, a part at a time.

        Raises:
            ormsgpack.MsgpackEncodeError: if it cannot be packed.
        """
        channel, messages = _conversation_in(value)
        if not messages:
            data = packed(value)
            check(data)
            return data
        old = self._unchanged(messages)
        new = messages if old is None else messages[len(old.kinds) :]
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
        """The conversation that is stored, if messages begin with those in it as they were."""
        stored = self._kept.stored(self._place).get(messages[0].id)
        return stored if stored is not None and stored.begins(messages) else None

    def read(self, data: bytes, loads: Loads) -> Any:
        """A value that was packed.

        Args:
            data: as it is stored.
            loads: reads any value, with the memory of the messages.
        """
        stored = self._found(data)
        return loads(data) if stored is None else stored.value(self._messages(stored, loads), loads)

    def outlined(self, data: bytes, loads: Loads) -> Any:
        """A value in which each message is `None`."""
        stored = self._found(data)
        return loads(data) if stored is None else stored.value([None] * len(stored.kinds), loads)

    def _found(self, data: bytes) -> _Stored | None:
        return next((one for one in self._kept.stored(self._place).values() if one.data == data), None)

    def _messages(self, stored: _Stored, loads: Loads) -> list[Any]:
        messages: list[Any] = [one.message() for one in stored.known.messages]
        if left := len(stored.kinds) - len(messages):
            unread = array_header(left) + stored.messages[stored.known.end :]
            messages += loads(unread)
            self._kept.keep(self._place, replace(stored, known=self._further(stored.known, unread)))
        return messages

    def _further(self, known: _Known, unread: bytes) -> _Known:
        """What is known when more messages were read, up to one that is not remembered."""
        messages, end, size = [*known.messages], known.end, known.size
        for content in contents_in(unread):
            if content is None or (one := self._kept.memory.remembered(content)) is None:
                break
            messages.append(one)
            end += len(ormsgpack.packb(ormsgpack.Ext(EXT_PYDANTIC_V2, content)))
            size += one.size
        return _Known((*messages,), end, size)


def _conversation_in(value: Any) -> tuple[str | None, list[Any]]:
    """The messages of the longest conversation in a value, and which channel it is; none if there is none."""
    channels = value.get(_CHANNELS) if type(value) is dict else None
    lists = channels.items() if type(channels) is dict else [(None, value)]
    long = [(name, found) for name, found in lists if type(found) is list and len(found) >= SHORTEST]
    known = [(name, found) for name, found in long if type(found[0]) in KINDS.values()]
    name, found = max(known, key=lambda pair: len(pair[1]), default=(None, []))
    return name, [*found]  # somebody may add to the list meanwhile


def _plain(messages: list[Any], packed_so: bytes) -> tuple[list[type], bytes] | None:
    """The kinds of messages and all their fields, as they were packed; `None` if one has more, or is none.

    They are read from the bytes: in another thread somebody may change a message meanwhile.
    """
    found = [None if content is None else kind_and_fields(content) for content in contents_in(packed_so)]
    plain = [one for one in found if one is not None]
    if len(plain) < len(messages) or not all(map(has_fields_only, messages)):
        return None
    return [kind for kind, _ in plain], b"".join(fields for _, fields in plain)


def _with_hole(value: Any, channel: str | None) -> Any:
    return _HOLE if channel is None else {**value, _CHANNELS: {**value[_CHANNELS], channel: _HOLE}}
