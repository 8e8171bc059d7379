"""Intended differences from LangGraph that no test of a promise shows."""

import os
from typing import Any

import anyio
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.errors import ParentCommand
from langgraph.types import Command

from callboard.testing import ScriptedModel, calls

from ._harness import asks, call, double, wants
from ._model import ReplayModel
from ._prebuilt import candidate

pytestmark = pytest.mark.skipif(
    os.environ.get("CALLBOARD_PARITY") == "reference", reason="LangGraph does not keep these promises"
)


def test_an_empty_list_of_messages_is_a_value_error() -> None:
    """LangGraph raises IndexError, out of `messages[-1]`."""
    ns = candidate()

    for refuse in (ns.tools_condition, ns.ToolNode([double]).invoke, ns.ValidationNode([double]).invoke):
        with pytest.raises(ValueError, match=r"(?i)no messages? found"):
            refuse([])


def test_a_badly_annotated_handler_is_refused_at_construction() -> None:
    """LangGraph raises this error later, in place of the first error that the handler should have handled."""

    def handler(error: int) -> str:
        return str(error)

    with pytest.raises(ValueError, match="Arbitrary types are not supported"):
        candidate().ToolNode([double], handle_tool_errors=handler)


def test_a_message_for_another_call_is_an_error_of_the_tool() -> None:
    """LangGraph passes the message on, and the model's call has no answer."""

    def foreign() -> ToolMessage:
        """Answer somebody else."""
        return ToolMessage("hello", tool_call_id="another")

    with pytest.raises(ValueError, match="tool_call_id 'another' for the call 'call-1'"):
        candidate().ToolNode([foreign]).invoke(wants("foreign"))


@pytest.mark.parametrize("mode", ["updates", "tasks"])
def test_a_result_has_the_id_of_the_state_as_soon_as_it_is_streamed(mode: Any) -> None:
    """LangGraph's agents stream the result without an id, so a reader cannot find it in the state."""
    agent = candidate().create_react_agent(ReplayModel(asks(call("double", {"x": 1})), "done"), [double])
    streamed: list[Any] = []
    stored: list[Any] = []

    def look_for_results(value: Any) -> None:
        if isinstance(value, ToolMessage):
            streamed.append(value.id)
        elif isinstance(value, dict):
            for part in value.values():
                look_for_results(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                look_for_results(part)

    for kind, chunk in agent.stream({"messages": [HumanMessage("q")]}, stream_mode=[mode, "values"]):
        if kind == mode:
            look_for_results(chunk)
        else:
            stored = [message.id for message in chunk["messages"] if isinstance(message, ToolMessage)]
    assert set(streamed) == set(stored) != {None}


@pytest.mark.real_clock  # an agent that is built for the first time imports modules in a thread
@pytest.mark.parametrize("slow", ["left", "right"])
async def test_of_several_handoffs_to_the_parent_the_first_of_the_reply_wins(slow: str) -> None:
    """In LangGraph the winner is random."""
    other_is_done = anyio.Event()

    def handoff(name: str) -> Any:
        async def go() -> Command[Any]:
            if name == slow:
                await other_is_done.wait()
            other_is_done.set()
            return Command(graph=Command.PARENT, goto=name, update={"messages": []})

        return StructuredTool.from_function(coroutine=go, name=f"to_{name}", description="d")

    model = ScriptedModel([calls(("to_left", {}), ("to_right", {}))])
    agent = candidate().create_react_agent(model, [handoff("left"), handoff("right")])
    with pytest.raises(ParentCommand) as caught:
        await agent.ainvoke({"messages": [HumanMessage("q")]})
    assert caught.value.args[0].goto == "left"
