"""A conversation merges messages as LangGraph's `add_messages` does, also on paths that do not call it."""

from copy import deepcopy
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
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
from langgraph.channels import BinaryOperatorAggregate
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Overwrite

from callboard import AgentState
from callboard.conversations._channels import Schema, State
from callboard.conversations._flow import Flow, drawing

IDS = st.none() | st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.sampled_from(["x", "y"])
KINDS = (HumanMessage, AIMessage, SystemMessage, AIMessageChunk)
MESSAGES = st.one_of(
    *(st.builds(kind, content=TEXTS, id=IDS) for kind in KINDS),
    st.builds(lambda message_id: ToolMessage("done", tool_call_id="1", id=message_id), IDS),
)
REMOVALS = st.sampled_from(["a", "b", REMOVE_ALL_MESSAGES]).map(lambda message_id: RemoveMessage(id=message_id))
LIKE_MESSAGES = st.tuples(st.just("user"), TEXTS) | st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS})
GIVEN = MESSAGES | REMOVALS | LIKE_MESSAGES
WITH_IDS = st.builds(HumanMessage, content=TEXTS, id=st.sampled_from(["a", "b", "c", "d"]))
WRITES = st.one_of(
    st.lists(MESSAGES, max_size=3),
    st.lists(GIVEN, max_size=3),
    GIVEN,
    st.lists(MESSAGES, max_size=2).map(tuple),
    st.lists(MESSAGES, max_size=2).map(Overwrite),
)


def state() -> State:
    """Return the state of an agent that has not spoken yet."""
    flow = Flow(tools=True, before=False, after=False, response=False, direct=frozenset())
    return State(Schema(drawing(flow, AgentState, None, {}), flow), {})


def told(messages: Any) -> Any:
    """Return messages in a comparable form: all generated ids are equal."""
    return [(type(one), one.content, "new" if _is_made_up(one.id) else one.id) for one in messages]


def _is_made_up(message_id: str | None) -> bool:
    try:
        return message_id is not None and UUID(message_id).version == 4
    except ValueError:
        return False


def outcome_of(add: Any, *args: Any) -> Any:
    try:
        return told(add(*args))
    except Exception as error:
        return type(error)


@given(st.lists(WRITES, max_size=4))
def test_what_is_written_is_what_add_messages_makes_of_it(writes: list[Any]) -> None:
    """The result is equal also where messages are replaced, removed, without ids, or not yet message objects."""
    channel: Any = BinaryOperatorAggregate(list, add_messages)

    def theirs(value: Any) -> Any:
        channel.update([value])
        return channel.get()

    ours = state()

    def ours_takes(value: Any) -> Any:
        ours.apply([("messages", value)])
        return ours.get("messages")

    for value in writes:
        assert outcome_of(ours_takes, deepcopy(value)) == outcome_of(theirs, deepcopy(value))


@given(st.lists(WITH_IDS, max_size=4), st.lists(WITH_IDS, max_size=3))
def test_messages_stay_the_objects_that_they_were(before: list[BaseMessage], new: list[BaseMessage]) -> None:
    """As in LangGraph, a node that changes its input message in place changes the message of the thread."""
    ours = state()
    ours.apply([("messages", Overwrite(list(before)))])
    ours.apply([("messages", list(new))])

    assert [*map(id, ours.get("messages"))] == [*map(id, add_messages(before, new))]


def test_the_list_that_was_there_stays_as_it_is() -> None:
    """A caller that holds the earlier list does not see later messages in it."""
    ours = state()
    ours.apply([("messages", [HumanMessage("a", id="a")])])
    before = ours.get("messages")
    ours.apply([("messages", [HumanMessage("b", id="b")])])

    assert [one.id for one in before] == ["a"]
    assert [one.id for one in ours.get("messages")] == ["a", "b"]


@pytest.mark.parametrize("name", ["id", "list"])
def test_what_was_changed_in_place_counts(name: str) -> None:
    """A hook may change a message's id, or append to the list itself."""
    ours = state()
    ours.apply([("messages", [HumanMessage("a", id="a")])])
    messages = ours.get("messages")
    if name == "id":
        messages[0].id = "b"
    else:
        messages.append(HumanMessage("b", id="b"))
    ours.apply([("messages", [HumanMessage("c", id="b")])])

    assert ours.get("messages")[-1].content == "c"
    assert [one.id for one in ours.get("messages")] == (["b"] if name == "id" else ["a", "b"])
