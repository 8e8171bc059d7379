"""Messages of all kinds, and the parts of which they consist."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=5), parts, max_size=3),
    max_leaves=8,
)
OBJECTS = st.builds(lambda part: {part}, st.text(max_size=3)) | st.just(Path("a")) | st.just(HumanMessage("within"))
MORE = st.dictionaries(st.text(max_size=5), PLAIN | OBJECTS, max_size=2)
CONTENT = st.text(max_size=20) | st.lists(
    st.text(max_size=5) | st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)}), max_size=3
)
CALLS = st.lists(
    st.builds(
        lambda name, args, call_id: {"name": name, "args": args, "id": call_id, "type": "tool_call"},
        st.text(max_size=5),
        st.dictionaries(st.text(max_size=5), PLAIN, max_size=3),
        st.none() | st.text(max_size=5),
    ),
    max_size=2,
)
ABOUT: Any = {"content": CONTENT, "additional_kwargs": MORE, "response_metadata": MORE, "id": st.none() | st.text()}
USAGE = st.none() | st.just({"input_tokens": 1, "output_tokens": 2, "total_tokens": 3})


def messages_of(kind: type[BaseMessage], **fields: Any) -> st.SearchStrategy[BaseMessage]:
    return st.fixed_dictionaries(fields).map(lambda drawn: kind(**drawn))


MESSAGES = st.one_of(
    messages_of(HumanMessage, **ABOUT),
    messages_of(HumanMessage, **ABOUT, extra=PLAIN),
    messages_of(SystemMessage, **ABOUT),
    messages_of(AIMessage, **ABOUT, tool_calls=CALLS, usage_metadata=USAGE),
    messages_of(AIMessageChunk, content=st.text(max_size=5)),
    messages_of(ToolMessage, **ABOUT, tool_call_id=st.text(max_size=5), artifact=PLAIN | OBJECTS),
    messages_of(RemoveMessage, id=st.text(max_size=5)),
)


def parts(value: Any) -> Any:
    """Return all parts of a value with types and order; for a message, also pydantic's own fields."""
    if isinstance(value, BaseMessage):
        fields_set, extra = value.__pydantic_fields_set__, value.__pydantic_extra__
        return type(value), parts(vars(value)), fields_set, parts(extra), value.__pydantic_private__
    if isinstance(value, dict):
        return dict, [(parts(key), parts(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [parts(part) for part in value]
    return type(value), repr(value)


def outcome_of(dump: Callable[[], Any]) -> Any:
    """Return the bytes that a serializer writes, or the type of its error."""
    try:
        return dump()
    except Exception as error:
        return type(error)
