"""Inputs that a ToolNode accepts, and the form of its output."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph.message import add_messages
from pydantic import BaseModel
from typing_extensions import TypedDict

from ._harness import Case, MessageList, asks, call, wants
from .conftest import Same

Messages = Annotated[list[AnyMessage], add_messages]


class PydanticState(BaseModel):
    messages: Messages
    foo: str = "bar"


@dataclass
class DataState:
    messages: Messages = field(default_factory=list)
    foo: str = "bar"


class ChatState(TypedDict, total=False):
    chat: Messages


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


def test_a_state_dict_is_answered_with_a_dict(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([double]), wants("double", {"x": 2})))


def test_a_pydantic_state_is_answered_with_a_dict(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([double]), PydanticState(**wants("double", {"x": 2})), state=PydanticState))


def test_a_dataclass_state_is_answered_with_a_dict(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([double]), DataState(**wants("double", {"x": 2})), state=DataState))


def test_a_message_list_is_answered_with_a_list(same: Same) -> None:
    same(
        lambda ns: Case(
            ns.ToolNode([double]), [HumanMessage("q", id="h"), asks(call("double", {"x": 2}))], state=MessageList
        )
    )


def test_a_list_of_calls_is_answered_with_a_dict(same: Same) -> None:
    calls = [call("double", {"x": 1}, "a"), call("shout", {"text": "hi"}, "b")]
    same(lambda ns: Case(ns.ToolNode([double, shout]), calls, send=True, seed={"messages": [], "foo": "x"}))


def test_a_call_with_context_is_answered_with_a_dict(same: Same) -> None:
    def scenario(ns: Any) -> Case:
        payload = {"__type": "tool_call_with_context", "tool_call": call("double", {"x": 4}), "state": {"messages": []}}
        return Case(ns.ToolNode([double]), payload, send=True, seed={"foo": "x"})

    same(scenario)


def test_a_custom_messages_key_is_read_and_written(same: Same) -> None:
    payload = {"chat": [asks(call("double", {"x": 2}))]}
    same(lambda ns: Case(ns.ToolNode([double], messages_key="chat"), payload, state=ChatState))


def test_a_list_of_calls_is_answered_under_the_custom_key(same: Same) -> None:
    same(
        lambda ns: Case(
            ns.ToolNode([double], messages_key="chat"),
            [call("double", {"x": 2})],
            state=ChatState,
            send=True,
            seed={"chat": [HumanMessage("q", id="h")]},
        )
    )


def test_several_calls_are_answered_in_their_order(same: Same) -> None:
    calls = [call("double", {"x": n}, f"c{n}") for n in range(7)]
    same(lambda ns: Case(ns.ToolNode([double]), {"messages": [asks(*calls)]}))


def test_calls_of_different_tools_are_answered_in_their_order(same: Same) -> None:
    calls = [call("shout", {"text": "a"}, "1"), call("double", {"x": 1}, "2"), call("shout", {"text": "b"}, "3")]
    same(lambda ns: Case(ns.ToolNode([double, shout]), {"messages": [asks(*calls)]}))


def test_the_latest_ai_message_counts_also_when_others_follow(same: Same) -> None:
    old = AIMessage("", tool_calls=[call("double", {"x": 100}, "old")], id="ai-0")
    history = [
        old,
        ToolMessage("200", tool_call_id="old", id="t"),
        asks(call("double", {"x": 1})),
        HumanMessage("?", id="h"),
    ]
    same(lambda ns: Case(ns.ToolNode([double]), {"messages": history}))


def test_an_ai_message_without_calls_gives_no_messages(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([double]), {"messages": [AIMessage("done", id="a")]}))


def test_a_list_whose_ai_message_has_no_calls_gives_an_empty_list(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([double]), [AIMessage("done", id="a")], state=MessageList))


def test_a_dict_without_messages_is_refused(same_direct: Same) -> None:
    same_direct(lambda ns: Case(ns.ToolNode([double]), {"foo": "x"}), raises="ValueError")


def test_a_dict_with_an_empty_message_list_is_refused(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([double]), {"messages": []}), raises="ValueError")


def test_messages_without_an_ai_message_are_refused(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([double]), {"messages": [HumanMessage("q")]}), raises="ValueError")


def test_a_message_list_without_an_ai_message_is_refused(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([double]), [HumanMessage("q")], state=MessageList), raises="ValueError")


def test_a_state_without_the_custom_key_is_refused(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([double], messages_key="chat"), wants("double", {"x": 1})), raises="ValueError")


def test_an_object_without_messages_is_refused(same_direct: Same) -> None:
    same_direct(lambda ns: Case(ns.ToolNode([double]), object()), raises="ValueError")


def test_an_unknown_tool_is_answered_with_the_names_there_are(same: Same) -> None:
    calls = [call("triple", {"x": 1}, "1"), call("double", {"x": 1}, "2")]
    same(lambda ns: Case(ns.ToolNode([double, shout]), {"messages": [asks(*calls)]}))


def test_an_unknown_tool_of_an_empty_node_is_answered_with_no_names(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([]), wants("triple")))


def test_an_unknown_tool_is_answered_also_when_errors_are_not_handled(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([double], handle_tool_errors=False), wants("triple")))


def test_an_unknown_tool_in_a_list_of_calls_is_answered(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([double]), [call("triple")], send=True))


def test_the_input_is_not_changed(same: Same) -> None:
    def scenario(ns: Any) -> Case:
        state = wants("double", {"x": 2}, foo="bar")
        return Case(ns.ToolNode([double]), state, log=[state])

    same(scenario)
