"""Histories that providers accept: the answer to each call comes directly after the message with the call."""

import re
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
from langchain_core.messages.tool import invalid_tool_call
from langchain_core.tools import tool
from langgraph.channels import BinaryOperatorAggregate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command, Overwrite, interrupt
from pydantic import BaseModel

from callboard import AgentState, create_agent, create_react_agent, tool_call
from callboard.agent._flow import ReactFlow, drawing
from callboard.conversations._channels import Schema, State
from callboard.conversations._history import repair
from callboard.testing import ScriptedModel, calls
from callboard.tools._unanswered import all_calls_in
from tests.helpers import make

from ._savers import AT, complaint, say, shape

pytestmark = pytest.mark.real_clock


async def work() -> str:
    return "done"


@pytest.mark.parametrize("create", [create_react_agent, create_agent])
async def test_an_answer_that_is_added_late_comes_before_what_was_said_meanwhile(create: Any) -> None:
    """LangGraph sends messages in the order of arrival, and the provider refuses the thread from then on."""

    @tool
    async def ask(query: str) -> str:
        """Ask somebody."""
        return str(interrupt(query))

    given_to_model: list[list[BaseMessage]] = []

    def reply(messages: list[BaseMessage]) -> Any:
        given_to_model.append(messages)
        return calls(("ask", {"query": "really?"})) if len(given_to_model) == 1 else "done"

    agent = create(ScriptedModel([reply], loop=True), [ask], checkpointer=InMemorySaver())
    first = await agent.ainvoke(say("go"), AT)
    replies = [message for message in first["messages"] if isinstance(message, AIMessage)]
    await agent.aupdate_state(AT, {"messages": [HumanMessage("by the way")]})
    answer = ToolMessage("yes", tool_call_id=replies[0].tool_calls[0]["id"])
    await agent.aupdate_state(AT, {"messages": [answer]}, as_node="tools")
    result = await agent.ainvoke(None, AT)
    assert complaint(given_to_model[-1]) is None
    assert shape(given_to_model[-1]) == ["human:go", "ai:", "tool:yes", "human:by the way"]
    assert shape(result) == ["human:go", "ai:", "human:by the way", "tool:yes", "ai:done"], "as added"


class Summary(BaseModel):
    text: str


async def test_the_request_for_a_structured_response_has_each_answer_after_its_call() -> None:
    @tool
    async def ask() -> str:
        """Ask."""
        return str(interrupt("really?"))

    model = ScriptedModel([calls("ask"), "done", calls(("Summary", {"text": "all"}))])
    agent = create_react_agent(model, [ask], response_format=Summary, checkpointer=InMemorySaver())
    await agent.ainvoke(say("go"), AT)
    result = await agent.ainvoke(Command(resume="yes", update={"messages": [HumanMessage("by the way")]}), AT)
    assert result["structured_response"] == Summary(text="all")
    assert shape(model.requests[-1]) == ["human:go", "ai:", "tool:yes", "human:by the way", "ai:done"]


def broken(call_id: str | None) -> Any:
    return invalid_tool_call(name="work", args='{"n": ', id=call_id, error="no JSON")


IDS = st.sampled_from(["a", "b", "c"])
MESSAGES = st.one_of(
    st.builds(lambda: HumanMessage("hi")),
    st.builds(lambda: SystemMessage("be kind")),
    st.builds(
        lambda ids, valid: AIMessage(
            "", tool_calls=[tool_call("work", one) for one in ids[:valid]], invalid_tool_calls=map(broken, ids[valid:])
        ),
        st.lists(IDS, max_size=3, unique=True),
        st.integers(0, 3),
    ),
    st.builds(lambda one: ToolMessage("done", tool_call_id=one), IDS),
)


def request_of(messages: list[BaseMessage]) -> list[BaseMessage]:
    return repair(messages).request


def number_messages(messages: list[BaseMessage]) -> list[BaseMessage]:
    return [message.model_copy(update={"id": str(number)}) for number, message in enumerate(messages)]


def answers_asked_for(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return the conversation without answers to calls that do not precede them."""
    conversation, owed = [], []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in owed:
                continue
            owed.remove(message.tool_call_id)
        elif isinstance(message, AIMessage):
            owed += [call["id"] for call in all_calls_in(message)]
        conversation.append(message)
    return conversation


@given(st.lists(MESSAGES, max_size=12))
def test_any_conversation_becomes_one_that_a_provider_takes(messages: list[BaseMessage]) -> None:
    """No answer to a call is lost, all other messages keep their order, and a valid conversation is unchanged."""
    before = number_messages(messages)
    after = request_of(before)

    added = [message for message in after if message.id is None]
    asking = [message for message in after if not isinstance(message, ToolMessage)]
    assert complaint(number_messages(sort_answers(after))) is None
    assert {message.id for message in after} - {None} == {message.id for message in answers_asked_for(before)}
    assert asking == [message for message in before if not isinstance(message, ToolMessage)]
    assert all(re.search("has no result|did not run", message.text) for message in added)
    assert request_of(after) == after
    if complaint(before) is None:
        assert after == before


def sort_answers(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return the messages with the answers to each message in the order of its calls."""
    order: dict[str | None, int] = {}
    exchange, keys = 0, []
    for message in messages:
        if isinstance(message, ToolMessage):
            keys.append((exchange, order[message.tool_call_id]))
            continue
        exchange += 1
        order = {call["id"]: n for n, call in enumerate(all_calls_in(message))}
        keys.append((exchange, -1))
    return [message for _, message in sorted(zip(keys, messages, strict=True), key=lambda pair: pair[0])]


def test_a_result_that_comes_late_takes_the_place_of_its_error_message() -> None:
    """A provider refuses two answers, and the error message says that the outcome is unknown."""
    reply = AIMessage("", tool_calls=[tool_call("work", "a")])
    result, question = ToolMessage("paid", tool_call_id="a"), HumanMessage("and?")

    assert request_of([*request_of([reply, question]), result]) == [reply, result, question]


def test_a_thread_keeps_answers_that_no_model_reads() -> None:
    """A result of a call that a tool has sent has no message with the call, and belongs to the state."""
    stray = [HumanMessage("hi"), ToolMessage("?", tool_call_id="a"), AIMessage("hello")]

    assert repair(stray) == (stray, [stray[0], stray[2]])


B = tool_call("work", "b")


@pytest.mark.parametrize(("build", "valid"), [(create_react_agent, []), (create_react_agent, [B]), (create_agent, [B])])
async def test_a_call_without_valid_json_gets_an_answer_and_the_model_goes_on(build: Any, valid: list[Any]) -> None:
    """OpenAI refuses each later request of the thread, and a reply with such a call alone ended the turn in silence."""
    requests: list[list[BaseMessage]] = []

    def reply(messages: list[BaseMessage]) -> str:
        requests.append(messages)
        return "done"

    broken_reply = AIMessage(
        [{"type": "tool_use", "id": None, "name": "work", "input": {}}],
        tool_calls=deepcopy(valid),
        invalid_tool_calls=[broken(None)],
    )
    agent = build(ScriptedModel([broken_reply, reply]), [make(work)])
    result = await agent.ainvoke(say("go"))

    call_id = result["messages"][1].invalid_tool_calls[0]["id"]
    assert call_id == result["messages"][1].content[0]["id"]
    assert result["messages"][-1].text == "done"
    assert complaint(requests[0]) is None
    assert [message.text[:25] for message in requests[0][2:]] == [*("done" for _ in valid), "Error: this call did not "]


@pytest.mark.parametrize(("build", "times"), [(create_react_agent, 3), (create_agent, 1)])
async def test_replies_with_malformed_calls_alone_end_the_turn_after_a_while_and_are_answered_in_the_next(
    build: Any, times: int
) -> None:
    """A model that repeats itself would use up the 9,999 steps of a run. In LangChain's agent one reply ends a turn."""
    requests: list[list[BaseMessage]] = []

    def reply(messages: list[BaseMessage]) -> AIMessage:
        requests.append(messages)
        return AIMessage("", invalid_tool_calls=[broken(None)])

    agent = build(ScriptedModel([reply], loop=True), [make(work)], checkpointer=InMemorySaver())
    for turn in (1, 2):
        await agent.ainvoke(say("go"), AT)
        assert len(requests) == turn * times
    assert list(map(complaint, requests)) == [None] * len(requests)


# A conversation merges messages as LangGraph's `add_messages` does, also on paths that do not call it.


FEW_IDS = st.none() | st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.sampled_from(["x", "y"])
KINDS = (HumanMessage, AIMessage, SystemMessage, AIMessageChunk)
SMALL_MESSAGES = st.one_of(
    *(st.builds(kind, content=TEXTS, id=FEW_IDS) for kind in KINDS),
    st.builds(lambda message_id: ToolMessage("done", tool_call_id="1", id=message_id), FEW_IDS),
)
REMOVALS = st.sampled_from(["a", "b", REMOVE_ALL_MESSAGES]).map(lambda message_id: RemoveMessage(id=message_id))
LIKE_MESSAGES = st.tuples(st.just("user"), TEXTS) | st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS})
GIVEN = SMALL_MESSAGES | REMOVALS | LIKE_MESSAGES
WITH_IDS = st.builds(HumanMessage, content=TEXTS, id=st.sampled_from(["a", "b", "c", "d"]))
WRITES = st.one_of(
    st.lists(SMALL_MESSAGES, max_size=3),
    st.lists(GIVEN, max_size=3),
    GIVEN,
    st.lists(SMALL_MESSAGES, max_size=2).map(tuple),
    st.lists(SMALL_MESSAGES, max_size=2).map(Overwrite),
)


def state() -> State:
    """Return the state of an agent that has not spoken yet."""
    flow = ReactFlow(tools=True, before=False, after=False, response=False, direct=frozenset())
    return State(Schema(drawing(flow, AgentState, None), flow), {})


def comparable(messages: Any) -> Any:
    """Return messages in a comparable form: all generated ids are equal."""
    return [(type(message), message.content, "new" if _is_made_up(message.id) else message.id) for message in messages]


def _is_made_up(message_id: str | None) -> bool:
    try:
        return message_id is not None and UUID(message_id).version == 4
    except ValueError:
        return False


def outcome_of(add: Any, *args: Any) -> Any:
    try:
        return comparable(add(*args))
    except Exception as error:
        return type(error)


@given(st.lists(WRITES, max_size=4))
def test_what_is_written_is_what_add_messages_makes_of_it(writes: list[Any]) -> None:
    channel: Any = BinaryOperatorAggregate(list, add_messages)

    def theirs(value: Any) -> Any:
        channel.update([value])
        return channel.get()

    our_state = state()

    def ours_takes(value: Any) -> Any:
        our_state.apply([("messages", value)])
        return our_state.get("messages")

    for value in writes:
        assert outcome_of(ours_takes, deepcopy(value)) == outcome_of(theirs, deepcopy(value))


@given(st.lists(WITH_IDS, max_size=4), st.lists(WITH_IDS, max_size=3))
def test_messages_stay_the_objects_that_they_were(before: list[BaseMessage], new: list[BaseMessage]) -> None:
    """As in LangGraph, a node that changes its input message in place changes the message of the thread.

    A caller that holds the earlier list does not see later messages in it.
    """
    our_state = state()
    our_state.apply([("messages", Overwrite(list(before)))])
    earlier_messages = our_state.get("messages")
    our_state.apply([("messages", list(new))])
    assert [*map(id, our_state.get("messages"))] == [*map(id, add_messages(before, new))]
    assert [*map(id, earlier_messages)] == [*map(id, before)]


@pytest.mark.parametrize("name", ["id", "list"])
def test_what_was_changed_in_place_counts(name: str) -> None:
    """A hook may change a message's id, or append to the list itself."""
    our_state = state()
    our_state.apply([("messages", [HumanMessage("a", id="a")])])
    messages = our_state.get("messages")
    if name == "id":
        messages[0].id = "b"
    else:
        messages.append(HumanMessage("b", id="b"))
    our_state.apply([("messages", [HumanMessage("c", id="b")])])
    assert our_state.get("messages")[-1].content == "c"
    assert [message.id for message in our_state.get("messages")] == (["b"] if name == "id" else ["a", "b"])
