"""Agents have a guard against loops: only many equal results meet its numbers, and one word turns it off."""

from contextlib import suppress
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError

from callboard import ToolNode, create_react_agent
from callboard.exceptions import LoopError
from callboard.middleware import LoopGuard
from callboard.testing import ScriptedModel, calls

from ._savers import AGENTS, QUESTION

pytestmark = pytest.mark.real_clock
AT: dict[str, Any] = {"configurable": {"thread_id": "1"}, "recursion_limit": 200}


async def look() -> str:
    """Look."""
    return "nothing"


def results_in(messages: list[Any]) -> list[str]:
    return [message.text for message in messages if isinstance(message, ToolMessage)]


@AGENTS
async def test_an_endless_loop_is_told_then_refused_then_ends_and_the_thread_goes_on(make: Any) -> None:
    model = ScriptedModel([*[calls("look")] * 40, "done"])
    agent = make(model, [look], checkpointer=InMemorySaver())
    with pytest.raises(LoopError, match="40 times in a row"):
        await agent.ainvoke(QUESTION, AT)

    state = await agent.ainvoke({"messages": [("user", "what have you found?")]}, AT)

    results = results_in(state["messages"])
    assert results[:14] == ["nothing"] * 14
    assert all(text.startswith("nothing\n\n[The same calls") for text in results[14:24])
    assert all(text.startswith("Error: this call was not run.") for text in results[24:39])
    assert len(results) == 40  # the call that ended the run is answered when the thread goes on
    assert state["messages"][-1].text == "done"


@AGENTS
async def test_results_that_are_nested_too_deeply_to_be_compared_end_no_run(make: Any) -> None:
    async def dig() -> list[dict[str, Any]]:
        """Dig."""
        nested: list[Any] = []
        for _ in range(5_000):
            nested = [nested]
        return [{"type": "text", "text": "deep", "nested": nested}]

    agent = make(ScriptedModel([*[calls("dig")] * 4, "done"]), [dig], loop_guard=LoopGuard(nudge=2, refuse=4, stop=8))
    assert (await agent.ainvoke(QUESTION))["messages"][-1].text == "done"


@AGENTS
async def test_one_word_turns_the_guard_off(make: Any) -> None:
    model = ScriptedModel([calls("look")], loop=True)
    agent = make(model, [look], loop_guard=False)

    with suppress(GraphRecursionError):  # one of both says that it needs more steps
        await agent.ainvoke(QUESTION, {"recursion_limit": 120})

    assert len(model.requests) > 50


@AGENTS
async def test_an_agent_takes_a_guard_with_other_numbers(make: Any) -> None:
    guard = LoopGuard(nudge=2, refuse=3, stop=4)
    agent = make(ScriptedModel([calls("look")], loop=True), [look], loop_guard=guard)

    with pytest.raises(LoopError, match="4 times"):
        await agent.ainvoke(QUESTION)


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_calls_of_a_node_with_a_key_and_an_override_of_its_own_are_guarded(version: Any) -> None:
    class Noisy(ToolNode):
        async def ainvoke(self, input: Any, config: Any = None, **options: Any) -> Any:
            return await super().ainvoke(input, config, **options)

    guard = LoopGuard(nudge=2, refuse=3, stop=9)
    model = ScriptedModel([*[calls("look", "look")] * 3, "done"])
    agent = create_react_agent(model, Noisy([look]), loop_guard=guard, version=version)
    results = results_in((await agent.ainvoke(QUESTION))["messages"])

    assert [text[:9] for text in results] == ["nothing"] * 2 + ["nothing\n\n"] * 2 + ["Error: th"] * 2


@AGENTS
@pytest.mark.parametrize("option", [None, 3, "off"])
def test_another_value_is_refused(make: Any, option: Any) -> None:
    with pytest.raises(TypeError, match=r"loop_guard=\.\.\.\) takes a LoopGuard, True or False, got"):
        make(ScriptedModel(["done"]), [look], loop_guard=option)


@AGENTS
def test_a_misspelt_tool_is_refused_when_the_agent_is_built(make: Any) -> None:
    with pytest.raises(ValueError, match="'loook'"):
        make(ScriptedModel(["done"]), [look], loop_guard=LoopGuard(ignore_results=["loook"]))
