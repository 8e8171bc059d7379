"""Types of results: what `tests/typing/results.py` says to type checkers is true at run time."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel

from callboard import Agent, AgentOutput, ToolNode, create_agent, create_react_agent, tool_call
from callboard.agent._create_agent import CreateOptions
from callboard.agent._react import ReactOptions
from callboard.testing import ScriptedModel, calls
from callboard.tools._node import NodeOptions

TYPED = {"model", "tools", "response_format", "state_schema"}


class Weather(BaseModel):
    """Structured response."""

    city: str


async def echo(text: str) -> str:
    """Return the text."""
    return text


@pytest.mark.parametrize(
    ("function", "options", "own_parameters"),
    [
        (create_agent, CreateOptions, TYPED),
        (create_react_agent, ReactOptions, {*TYPED, "deprecated_kwargs"}),
        (ToolNode.ainvoke, NodeOptions, {"self", "input", "config"}),
        (ToolNode.invoke, NodeOptions, {"self", "input", "config"}),
    ],
)
def test_a_type_checker_knows_the_options_of_the_function(
    function: Callable[..., Any], options: type[Any], own_parameters: set[str]
) -> None:
    """An option that the overloads lack would be an error of the type checker in each program that uses it."""
    assert set(options.__annotations__) == inspect.signature(function).parameters.keys() - own_parameters


@pytest.mark.real_clock
async def test_a_structured_response_is_an_object_of_its_type() -> None:
    script = [calls(("Weather", {"city": "Oslo"}))]
    agent: Agent[AgentOutput[Weather]] = create_agent(ScriptedModel(script), response_format=Weather)
    result = await agent.ainvoke({"messages": "Where?"})

    assert result["structured_response"] == Weather(city="Oslo")
    assert set(result) <= set(get_type_hints(AgentOutput))


async def test_the_output_of_a_node_has_the_form_that_its_type_says() -> None:
    node, call = ToolNode([echo]), tool_call("echo", "1", text="tea")

    assert [message.text for message in (await node.ainvoke([call]))["messages"]] == ["tea"]
    assert [message.text for message in (await node.ainvoke({"messages": [calls(call)]}))["messages"]] == ["tea"]
    assert [message.text for message in await node.ainvoke([calls(call)])] == ["tea"]
