"""tools_condition: the node that follows the model."""

from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel

from ._dump import dump
from ._harness import asks, call
from ._prebuilt import candidate, reference

WANTS = asks(call("t"))
DONE = AIMessage("done")


class Model(BaseModel):
    messages: list[Any]


class OtherModel(BaseModel):
    chat: list[Any]


@dataclass
class Data:
    messages: list[Any]


STATES: dict[str, tuple[Any, dict[str, Any]]] = {
    "a list whose last message wants tools": ([HumanMessage("q"), WANTS], {}),
    "a list whose last message is done": ([WANTS, DONE], {}),
    "a list that ends with a human message": ([WANTS, HumanMessage("q")], {}),
    "a dict that wants tools": ({"messages": [WANTS]}, {}),
    "a dict that is done": ({"messages": [DONE]}, {}),
    "a pydantic state that wants tools": (Model(messages=[WANTS]), {}),
    "a pydantic state that is done": (Model(messages=[DONE]), {}),
    "a dataclass that wants tools": (Data([WANTS]), {}),
    "a dict with another key": ({"chat": [WANTS]}, {"messages_key": "chat"}),
    "a pydantic state with another key": (OtherModel(chat=[WANTS]), {"messages_key": "chat"}),
    "a dict without messages": ({"foo": 1}, {}),
    "a dict with an empty list": ({"messages": []}, {}),
    "a pydantic state without the key": (Model(messages=[WANTS]), {"messages_key": "chat"}),
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


def test_both_routes_and_the_error_occur_in_the_table() -> None:
    ns = reference()

    assert ns.tools_condition([WANTS]) == "tools"
    assert ns.tools_condition([DONE]) == "__end__"
    with pytest.raises(ValueError, match="No messages found in input state to tool_edge"):
        ns.tools_condition({})
