"""Histories that providers accept: the answer to each call comes directly after the message with the call."""

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from callboard import create_react_agent
from callboard.conversations._history import repaired
from callboard.testing import ScriptedModel, calls, tool_call

from ._savers import complaint, shape

pytestmark = pytest.mark.real_clock

WAIT = 20
AT: Any = {"configurable": {"thread_id": "1"}}


async def test_an_answer_that_is_added_late_comes_before_what_was_said_meanwhile() -> None:
    """LangGraph sends messages in the order of arrival, and the provider refuses the thread from then on."""

    @tool
    async def ask(query: str) -> str:
        """Ask somebody."""
        return str(interrupt(query))

    given_to_model: list[list[BaseMessage]] = []

    def reply(messages: list[BaseMessage]) -> Any:
        given_to_model.append(messages)
        return calls(("ask", {"query": "really?"})) if len(given_to_model) == 1 else "done"

    agent = create_react_agent(ScriptedModel([reply], loop=True), [ask], checkpointer=InMemorySaver())
    with anyio.fail_after(WAIT):
        first = await agent.ainvoke({"messages": [("user", "go")]}, AT)
        asked = [message for message in first["messages"] if isinstance(message, AIMessage)]
        await agent.aupdate_state(AT, {"messages": [HumanMessage("by the way")]})
        answer = ToolMessage("yes", tool_call_id=asked[0].tool_calls[0]["id"])
        await agent.aupdate_state(AT, {"messages": [answer]}, as_node="tools")
        result = await agent.ainvoke(None, AT)

    assert complaint(given_to_model[-1]) is None
    assert shape(given_to_model[-1]) == ["human:go", "ai:", "tool:yes", "human:by the way"]
    assert shape(result["messages"]) == ["human:go", "ai:", "human:by the way", "tool:yes", "ai:done"], "as added"


IDS = st.sampled_from(["a", "b", "c"])
MESSAGES = st.one_of(
    st.builds(lambda: HumanMessage("hi")),
    st.builds(lambda: SystemMessage("be kind")),
    st.builds(
        lambda ids: AIMessage("", tool_calls=[tool_call("work", one) for one in ids]),
        st.lists(IDS, max_size=3, unique=True),
    ),
    st.builds(lambda one: ToolMessage("done", tool_call_id=one), IDS),
)


def numbered(messages: list[BaseMessage]) -> list[BaseMessage]:
    return [message.model_copy(update={"id": str(place)}) for place, message in enumerate(messages)]


def answers_asked_for(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return the conversation without answers to calls that do not precede them."""
    left, owed = [], []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in owed:
                continue
            owed.remove(message.tool_call_id)
        elif isinstance(message, AIMessage):
            owed += [call["id"] for call in message.tool_calls]
        left.append(message)
    return left


@given(st.lists(MESSAGES, max_size=12))
def test_any_conversation_becomes_one_that_a_provider_takes(messages: list[BaseMessage]) -> None:
    """No message is lost, the messages with calls keep their order, and a valid conversation is unchanged."""
    before = numbered(answers_asked_for(messages))

    after = repaired(before)

    added = [message for message in after if message.id is None]
    asking = [message for message in after if not isinstance(message, ToolMessage)]
    assert complaint(numbered(ordered(after))) is None
    assert {message.id for message in after} - {None} == {message.id for message in before}
    assert len(after) == len(before) + len(added)
    assert asking == [message for message in before if not isinstance(message, ToolMessage)]
    assert all("has no result" in message.text for message in added)
    assert repaired(after) == after
    if complaint(before) is None:
        assert after == before


def ordered(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return the messages with the answers to each message in the order of its calls."""
    order: dict[str | None, int] = {}
    exchange, keys = 0, []
    for message in messages:
        if isinstance(message, ToolMessage):
            keys.append((exchange, order[message.tool_call_id]))
            continue
        exchange += 1
        order = {call["id"]: n for n, call in enumerate(message.tool_calls)} if isinstance(message, AIMessage) else {}
        keys.append((exchange, -1))
    return [message for _, message in sorted(zip(keys, messages, strict=True), key=lambda pair: pair[0])]


def test_answers_that_answer_nothing_stay_where_they_are() -> None:
    """A person may have added such answers, and the provider's error explains what is wrong."""
    stray = [HumanMessage("hi"), ToolMessage("?", tool_call_id="a"), AIMessage("hello")]

    assert repaired(stray) == stray
