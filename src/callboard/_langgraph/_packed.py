"""Values as LangGraph stores them; a message of plain data is packed as it is, where pydantic would copy it first."""

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
"""The messages that are known: everybody may read these, and to make them runs nobody else's code."""

_KNOWN = {kind: (name, frozenset(kind.model_fields)) for name, kind in KINDS.items()}
"""By kind: its name, and those of its fields."""

Dumps = Callable[[Any], tuple[str, bytes]]


_METHOD = "model_validate_json"

_AROUND = {
    kind: (ormsgpack.packb((*name, None, _METHOD))[: -1 - len(end)], end)
    for kind, (name, _fields) in _KNOWN.items()
    for end in [ormsgpack.packb(_METHOD)]
}
"""By kind: the bytes before the fields of a message, and those behind."""

_fields_of = vars(BaseModel)["__dict__"].__get__
"""The fields of a message: what `vars` gives, in a quarter of the time."""

_extra_of = attrgetter("__pydantic_extra__")


def dumped(value: Any, theirs: Dumps, pack: Callable[[Any], bytes] | None = None) -> tuple[str, bytes]:
    """What LangGraph's serializer makes of a value.

    Args:
        value: whatever it is.
        theirs: the serializer, for what is not packed, and for what cannot be.
        pack: packs it; see `packed`.
    """
    if value is None or isinstance(value, (bytes, bytearray)):
        return theirs(value)
    try:
        return "msgpack", (pack or packed)(value)
    except ormsgpack.MsgpackEncodeError:
        return theirs(value)  # it may have another way, or an error to tell


def packed(value: Any) -> bytes:
    """A value as LangGraph packs it.

    Raises:
        ormsgpack.MsgpackEncodeError: if it cannot be packed.
    """
    return ormsgpack.packb(value, default=_default, option=_option)


def _default(value: Any) -> Any:
    if not has_fields_only(value):
        return _msgpack_default(value)
    name, _ = _KNOWN[type(value)]
    try:  # without a default, anything that is not plain is an error
        content = ormsgpack.packb((*name, _fields_of(value), _METHOD), option=_option)
    except ormsgpack.MsgpackEncodeError:
        return _msgpack_default(value)
    return ormsgpack.Ext(EXT_PYDANTIC_V2, content)


def has_fields_only(value: Any) -> bool:
    """Whether a value is a message of a known kind that has nothing but its fields: they say how it is packed."""
    known = _KNOWN.get(type(value))
    return known is not None and not value.__pydantic_extra__ and _fields_of(value).keys() <= known[1]


def fields_of_all(messages: Sequence[Any]) -> bytes | None:
    """The fields of messages, packed in one go; `None` if one of them is not of a known kind, or not plain."""
    if not _KNOWN.keys() >= {*map(type, messages)} or any(map(_extra_of, messages)):
        return None
    fields = [*map(_fields_of, messages)]
    try:
        return items_of(ormsgpack.packb(fields, option=_option), len(fields))
    except ormsgpack.MsgpackEncodeError:
        return None


def kind_and_fields(content: bytes) -> tuple[type[BaseMessage], bytes] | None:
    """The kind of a message that is packed, and its fields as `fields_of_all` packs them; `None` of an unknown one."""
    for kind, (before, behind) in _AROUND.items():
        if content.startswith(before) and content.endswith(behind):
            return kind, content[len(before) : -len(behind)]
    return None


def contents_in(array: bytes) -> list[bytes | None]:
    """What the models in an array consist of, packed; `None` in place of all else."""
    items = ormsgpack.unpackb(array, ext_hook=lambda *ext: ext, option=ormsgpack.OPT_NON_STR_KEYS)
    return [item[1] if type(item) is tuple and item[0] == EXT_PYDANTIC_V2 else None for item in items]


def items_of(array: bytes, count: int) -> bytes:
    """What is in an array of so many, packed."""
    return array[len(array_header(count)) :]


def array_header(count: int) -> bytes:
    """How an array of so many begins."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 2**16 else b"\xdd" + count.to_bytes(4)
