"""Inputs that a ToolNode accepts, and the form of its output."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph.message import add_messages
from pydantic import BaseModel
from typing_extensions import TypedDict

from ._harness import Case, MessageList, alike, asks, call, wants
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


NUMBER, PAIR = call("double", {"x": 2}), [call("double", {"x": 1}, "a"), call("shout", {"text": "hi"}, "b")]
HUMAN, DONE = HumanMessage("q", id="h"), AIMessage("done", id="a")
WITH_CONTEXT = {"__type": "tool_call_with_context", "tool_call": NUMBER, "state": {"messages": []}}
OLD = [AIMessage("", tool_calls=[call("double", {"x": 9}, "old")], id="ai-0"), ToolMessage("18", tool_call_id="old")]
CHAT = {"messages_key": "chat"}


def state(*messages: Any) -> dict[str, Any]:
    return {"messages": [*messages]}


ANSWERED: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    # input, options of the node, options of the graph
    "a state dict": (state(asks(NUMBER)), {}, {}),
    "a pydantic state": (PydanticState(**state(asks(NUMBER))), {}, {"state": PydanticState}),
    "a dataclass state": (DataState(**state(asks(NUMBER))), {}, {"state": DataState}),
    "a message list": ([HUMAN, asks(NUMBER)], {}, {"state": MessageList}),
    "a list of calls": (PAIR, {}, {"send": True, "seed": {**state(), "foo": "x"}}),
    "a call with context": (WITH_CONTEXT, {}, {"send": True, "seed": {"foo": "x"}}),
    "a custom messages key": ({"chat": [asks(NUMBER)]}, CHAT, {"state": ChatState}),
    "a list of calls under the custom key": (
        [NUMBER],
        CHAT,
        {"state": ChatState, "send": True, "seed": {"chat": [HUMAN]}},
    ),
    "several calls in their order": (state(asks(*(call("double", {"x": n}, f"c{n}") for n in range(7)))), {}, {}),
    "calls of different tools in their order": (state(asks(*PAIR, call("double", {"x": 3}, "c"))), {}, {}),
    "the latest AI message also when others follow": (state(*OLD, asks(NUMBER), HUMAN), {}, {}),
    "an AI message without calls": (state(DONE), {}, {}),
    "a list whose AI message has no calls": ([DONE], {}, {"state": MessageList}),
    "an unknown tool with the names there are": (state(asks(call("triple", id="1"), NUMBER)), {}, {}),
    "an unknown tool of an empty node": (wants("triple"), {"tools": []}, {}),
    "an unknown tool when errors are not handled": (wants("triple"), {"handle_tool_errors": False}, {}),
    "an unknown tool in a list of calls": ([call("triple")], {}, {"send": True}),
}


def given(ns: Any, input: Any, node: dict[str, Any], **case: Any) -> Case:
    return Case(ns.ToolNode(**{"tools": [double, shout], **node}), input, **case)


@pytest.mark.parametrize("label", ANSWERED)
def test_an_input_is_answered(label: str, same: Same) -> None:
    payload, node, case = ANSWERED[label]
    same(lambda ns: given(ns, payload, node, **case))


REFUSED: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "a dict with an empty message list": (state(), {}, {}),
    "messages without an AI message": (state(HUMAN), {}, {}),
    "a message list without an AI message": ([HUMAN], {}, {"state": MessageList}),
    "a state without the custom key": (state(asks(NUMBER)), CHAT, {}),
}


@pytest.mark.parametrize("label", REFUSED)
def test_an_input_is_refused(label: str, same: Same) -> None:
    payload, node, case = REFUSED[label]
    same(lambda ns: given(ns, payload, node, **case), raises="ValueError")


@pytest.mark.parametrize("input", [{"foo": "x"}, object()], ids=["a dict without messages", "a plain object"])
def test_an_input_that_no_graph_accepts_is_refused(input: Any, same_direct: Same) -> None:
    same_direct(lambda ns: given(ns, input, {}), raises="ValueError")


@alike
def test_the_input_is_not_changed(ns: Any) -> Case:
    state = wants("double", {"x": 2}, foo="bar")
    return Case(ns.ToolNode([double]), state, log=[state])
