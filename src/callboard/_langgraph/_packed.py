"""Packing of values in LangGraph's format, with a fast path for messages that contain only plain data."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, _msgpack_default, _option
from pydantic import BaseModel

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
