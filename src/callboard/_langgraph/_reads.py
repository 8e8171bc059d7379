"""How a checkpointer reads what is stored."""

import copy
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer, _create_msgpack_ext_hook

_MESSAGE = AIMessage("")


def reading_objects(saver: Any) -> Any:
    """A checkpointer that makes of what is stored the objects that it was.

    LangGraph's server looks at threads through one that makes dicts of them, for it only shows them. An agent has
    to know a message when it sees one, or it cannot say which calls are open.
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
