"""Values as LangGraph stores them; a message of plain data is packed as it is, where pydantic would copy it first."""

from collections.abc import Callable
from typing import Any

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, _msgpack_default, _option

KINDS: dict[tuple[str, str], type[BaseMessage]] = {
    name: kind
    for kind in (HumanMessage, AIMessage, SystemMessage, ToolMessage)
    if (name := (kind.__module__, kind.__name__)) in SAFE_MSGPACK_TYPES
}
"""The messages that are known: everybody may read these, and to make them runs nobody else's code."""

_KNOWN = {kind: (name, frozenset(kind.model_fields)) for name, kind in KINDS.items()}
"""By kind: its name, and those of its fields."""

Dumps = Callable[[Any], tuple[str, bytes]]


def dumped(value: Any, theirs: Dumps) -> tuple[str, bytes]:
    """What LangGraph's serializer makes of a value.

    Args:
        value: whatever it is.
        theirs: the serializer, for what is not packed, and for what cannot be.
    """
    if value is None or isinstance(value, (bytes, bytearray)):
        return theirs(value)
    try:
        return "msgpack", ormsgpack.packb(value, default=_default, option=_option)
    except ormsgpack.MsgpackEncodeError:
        return theirs(value)  # it may have another way, or an error to tell


def _default(value: Any) -> Any:
    known = _KNOWN.get(type(value))
    if known is None or value.__pydantic_extra__ or not vars(value).keys() <= known[1]:
        return _msgpack_default(value)
    try:  # without a default, anything that is not plain is an error
        content = ormsgpack.packb((*known[0], vars(value), "model_validate_json"), option=_option)
    except ormsgpack.MsgpackEncodeError:
        return _msgpack_default(value)
    return ormsgpack.Ext(EXT_PYDANTIC_V2, content)
