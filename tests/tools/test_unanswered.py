"""Promise 2: finding the unanswered calls of a conversation is correct and takes linear time."""

import sys
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph, add_messages

from callboard import ToolNode, tool_call
from callboard.conversations._history import repair
from callboard.testing import Recorder
from callboard.tools._overrides import outputs_of
from callboard.tools._unanswered import answer_of, each_without_answer, id_of, without_answer

IDS = st.sampled_from(["a", "b", "c"])
REPLIES = st.lists(IDS, max_size=3).map(lambda ids: AIMessage("", tool_calls=[tool_call("work", one) for one in ids]))
MESSAGES = st.lists(st.one_of(REPLIES, IDS.map(lambda one: ToolMessage("", tool_call_id=one))), max_size=8)


@given(MESSAGES, st.lists(IDS, max_size=4))
def test_an_answer_after_the_last_reply_with_its_id_answers_one_call(messages: list[Any], ids: list[str]) -> None:
    """A slow reference implementation defines which messages are answers."""
    calls = [tool_call("work", call_id) for call_id in ids]
    index_by_id = {
        call_id: index
        for index, message in enumerate(messages)
        for call_id in map(id_of, getattr(message, "tool_calls", ()))
    }
    answers = [
        m for index, m in enumerate(messages) if m.type == "tool" and index > index_by_id.get(m.tool_call_id, index)
    ]

    open_calls = each_without_answer(calls, messages)

    assert open_calls == without_answer(calls, answers)
    for call in {id_of(call): call for call in calls}.values():
        if id_of(call) in index_by_id:
            assert answer_of(call, messages) is next(
                (m for m in reversed(answers) if m.tool_call_id == call["id"]), None
            )


class Talk(TypedDict):
    """State of a graph."""

    messages: Annotated[list[BaseMessage], add_messages]


@pytest.mark.backends("asyncio")
async def test_of_calls_that_share_an_id_one_answer_in_the_graph_answers_one() -> None:
    """A node passes calls on directly, and the graph's state has one answer for two calls of the same id."""
    rec = Recorder()
    node = ToolNode([rec.tool("work")])
    tool_calls = [tool_call("work", "same", query="first"), tool_call("work", "same", query="second")]
    history = [HumanMessage("go"), AIMessage("", tool_calls=tool_calls), ToolMessage("done", tool_call_id="same")]

    async def run(state: Talk) -> Any:
        return {"messages": (await node.ainvoke(tool_calls))["messages"]}

    graph = StateGraph(Talk)
    graph.add_node("run", run)
    graph.add_edge(START, "run")
    with anyio.fail_after(5):
        await graph.compile().ainvoke({"messages": history})

    assert [event.query for event in rec.events if event.kind == "started"] == ["second"]


def work_of(run: Callable[[], object], *events: str) -> int:
    """Return the number of function calls of these kinds, or of Python and C functions; it is deterministic."""
    count = 0

    def note(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in (events or ("call", "c_call"))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def reads(number: int) -> Callable[[], object]:
    """Check each call of a long reply, half of which is answered."""
    calls = [tool_call("work", f"id-{index}") for index in range(number)]
    answers = [ToolMessage("", tool_call_id=f"id-{index}") for index in range(0, number, 2)]
    return lambda: each_without_answer(calls, [AIMessage("", tool_calls=calls), *answers])


def repairs(number: int) -> Callable[[], object]:
    """Repair a conversation whose answers are in the wrong order."""
    calls = [tool_call("work", f"id-{index}") for index in range(number)]
    answers = [ToolMessage("", tool_call_id=f"id-{index}") for index in reversed(range(number))]
    return lambda: repair([AIMessage("", tool_calls=calls), HumanMessage("oh"), *answers])


def returns(number: int) -> Callable[[], object]:
    """Separate the results of a node's own entry point, which come in any order."""
    calls = [tool_call("work", f"id-{index}") for index in range(number)]
    answers = [ToolMessage("", tool_call_id=f"id-{index}") for index in reversed(range(number))]
    return lambda: outputs_of(answers, calls, "messages", "entry")


@pytest.mark.parametrize("asks", [reads, repairs, returns])
def test_ten_times_as_many_calls_are_ten_times_the_work(asks: Callable[[int], Callable[[], object]]) -> None:
    """A model may request thousands of calls, and each check runs in the event loop."""
    few, many = work_of(asks(100)), work_of(asks(1000))
    assert many < 12 * few
