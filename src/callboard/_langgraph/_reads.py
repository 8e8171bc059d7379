"""Checkpointers that parse stored values into objects."""

import copy
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer, _create_msgpack_ext_hook

_MESSAGE = AIMessage("")


def reading_objects(saver: Any) -> Any:
    """Return a checkpointer that parses stored values into objects instead of dicts.

    LangGraph's server uses one that returns dicts, because it only displays threads. An agent needs message objects, to
    tell which calls are open.
    """
    serde = getattr(saver, "serde", None)
    if not isinstance(serde, JsonPlusSerializer) or not serde._custom_unpack_ext_hook:
        return saver
    if isinstance(serde.loads_typed(serde.dumps_typed(_MESSAGE)), AIMessage):
        return saver
    other, plain = copy.copy(saver), copy.copy(serde)
    allowed: Any = plain._allowed_msgpack_modules
    plain._unpack_ext_hook = _create_msgpack_ext_hook(allowed)
    plain._custom_unpack_ext_hook = False
    other.serde = plain
    return other
