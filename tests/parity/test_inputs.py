"""Inputs that a ToolNode accepts, and the form of its output."""

from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph.message import add_messages
from pydantic import BaseModel
from typing_extensions import TypedDict

from callboard import create_react_agent

from ._dump import dump
from ._harness import DIRECT_MODES, Case, MessageList, alike, asks, call, table_test, wants
from ._model import ReplayModel
from ._prebuilt import candidate, reference

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


REFUSED: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "a dict with an empty message list": (state(), {}, {}),
    "messages without an AI message": (state(HUMAN), {}, {}),
    "a message list without an AI message": ([HUMAN], {}, {"state": MessageList}),
    "a state without the custom key": (state(asks(NUMBER)), CHAT, {}),
}


def input_scenario(input: Any, node: dict[str, Any], case: dict[str, Any]) -> Any:
    return lambda ns: Case(ns.ToolNode(**{"tools": [double, shout], **node}), input, **case)


test_an_input_is_answered_or_refused_alike = table_test(
    {
        **{label: input_scenario(*row) for label, row in ANSWERED.items()},
        **{label: (input_scenario(*row), "ValueError") for label, row in REFUSED.items()},
    }
)
test_an_input_that_no_graph_accepts_is_refused = table_test(
    {
        "a dict without messages": (input_scenario({"foo": "x"}, {}, {}), "ValueError"),
        "a plain object": (input_scenario(object(), {}, {}), "ValueError"),
    },
    modes=DIRECT_MODES,
)


@alike
def test_the_input_is_not_changed(ns: Any) -> Case:
    state = wants("double", {"x": 2}, foo="bar")
    return Case(ns.ToolNode([double]), state, log=[state])


@pytest.mark.parametrize("call_id", [5, 0, 1.5, UUID(int=5)])
@alike(modes=DIRECT_MODES)
def test_an_id_that_is_a_number_goes_on_as_text(ns: Any, call_id: Any) -> Case:
    """`ToolMessage` accepts numeric ids, and people write them by hand."""
    return Case(ns.ToolNode([double]), [{**call("double", {"x": 2}), "id": call_id}])


@pytest.mark.parametrize("name", [None, b"double"])
@alike(modes=DIRECT_MODES)
def test_a_name_that_is_no_text_is_that_of_no_tool(ns: Any, name: Any) -> Case:
    """The call's message says so, and the other calls run."""

    def describe_messages(state: Any) -> list[Any]:
        return [(answer.content, answer.tool_call_id, answer.status) for answer in state["messages"]]

    message = asks(call("double", {"x": 2}, "good"), call("double", {"x": 3}, "bad"))
    message.tool_calls[1]["name"] = name
    return Case(ns.ToolNode([double]) | RunnableLambda(describe_messages), {"messages": [message]})


class Careless(ReplayModel):
    """A model whose first reply has names and ids that are not strings."""

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._generate(*args, **kwargs)
        message: Any = result.generations[0].message
        for tool_call, (name, call_id) in zip(
            message.tool_calls, [(None, "0"), (["double"], "1"), (5, 7)], strict=False
        ):
            tool_call["name"], tool_call["id"] = name, call_id
        return result


@pytest.mark.real_clock
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_such_calls_do_not_end_the_run_of_an_agent(version: Any) -> None:
    """Each call has its message, and the model goes on; LangGraph fails on two of the three calls."""
    first = asks(*(call("double", {"x": 1}, str(number)) for number in range(3)))
    agent = create_react_agent(Careless(first, "done"), [double], version=version)
    messages = (await agent.ainvoke({"messages": [("user", "go")]}))["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "tool", "ai"]
    assert [message.tool_call_id for message in messages[2:5]] == ["0", "1", "7"]
    assert [message.text.split(" is not")[0] for message in messages[2:5]] == [
        "Error: None",
        "Error: ['double']",
        "Error: 5",
    ]


WANTS = asks(call("t"))


class ChatModel(BaseModel):
    chat: list[Any]


STATES: dict[str, tuple[Any, dict[str, Any]]] = {
    "a list whose last message wants tools": ([HumanMessage("q"), WANTS], {}),
    "a list whose last message is done": ([WANTS, DONE], {}),
    "a list that ends with a human message": ([WANTS, HumanMessage("q")], {}),
    "a dict that wants tools": ({"messages": [WANTS]}, {}),
    "a dict that is done": ({"messages": [DONE]}, {}),
    "a pydantic state that wants tools": (PydanticState(messages=[WANTS]), {}),
    "a pydantic state that is done": (PydanticState(messages=[DONE]), {}),
    "a dataclass that wants tools": (DataState([WANTS]), {}),
    "a dict with another key": ({"chat": [WANTS]}, {"messages_key": "chat"}),
    "a pydantic state with another key": (ChatModel(chat=[WANTS]), {"messages_key": "chat"}),
    "a dict without messages": ({"foo": 1}, {}),
    "a dict with an empty list": ({"messages": []}, {}),
    "a pydantic state without the key": (PydanticState(messages=[WANTS]), {"messages_key": "chat"}),
    "a plain object": (object, {}),
    "messages as dicts": ({"messages": [{"role": "assistant", "tool_calls": [call("t")]}]}, {}),
}


@pytest.mark.parametrize("label", STATES)
def test_the_route_is_the_same_for(label: str) -> None:
    state, options = STATES[label]

    def route(ns: Any) -> Any:
        try:
            return ns.tools_condition(state, **options)
        except Exception as error:
            return dump(error)

    assert route(candidate()) == route(reference())
