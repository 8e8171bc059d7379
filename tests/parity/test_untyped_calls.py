"""Calls whose names and ids are not strings: constructors refuse them, but models and tests write them."""

from typing import Any
from uuid import UUID

import anyio
import pytest
from langchain_core.runnables import RunnableLambda

from callboard import create_react_agent

from ._harness import DIRECT_MODES, Case, alike, asks, call
from ._model import ReplayModel
from .conftest import Same


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


@pytest.mark.parametrize("call_id", [5, 0, 1.5, UUID(int=5)])
@alike(modes=DIRECT_MODES)
def test_an_id_that_is_a_number_goes_on_as_text(ns: Any, call_id: Any) -> Case:
    """`ToolMessage` accepts numeric ids, and people write them by hand."""
    return Case(ns.ToolNode([double]), [{**call("double", {"x": 2}), "id": call_id}])


@pytest.mark.parametrize("name", [None, b"double"])
def test_a_name_that_is_no_text_is_that_of_no_tool(same_direct: Same, name: Any) -> None:
    """The call's message says so, and the other calls run."""

    def told(state: Any) -> list[Any]:
        return [(one.content, one.tool_call_id, one.status) for one in state["messages"]]

    def scenario(ns: Any) -> Case:
        message = asks(call("double", {"x": 2}, "good"), call("double", {"x": 3}, "bad"))
        message.tool_calls[1]["name"] = name
        return Case(ns.ToolNode([double]) | RunnableLambda(told), {"messages": [message]})

    same_direct(scenario)


class Careless(ReplayModel):
    """A model whose first reply has names and ids that are not strings."""

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._generate(*args, **kwargs)
        made: Any = result.generations[0].message
        for one, (name, call_id) in zip(made.tool_calls, [(None, "0"), (["double"], "1"), (5, 7)], strict=False):
            one["name"], one["id"] = name, call_id
        return result


@pytest.mark.real_clock
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_such_calls_do_not_end_the_run_of_an_agent(version: Any) -> None:
    """Each call has its message, and the model goes on; LangGraph fails on two of the three calls."""
    first = asks(*(call("double", {"x": 1}, str(number)) for number in range(3)))
    agent = create_react_agent(Careless(first, "done"), [double], version=version)
    with anyio.fail_after(20):
        messages = (await agent.ainvoke({"messages": [("user", "go")]}))["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "tool", "ai"]
    assert [message.tool_call_id for message in messages[2:5]] == ["0", "1", "7"]
    assert [message.text.split(" is not")[0] for message in messages[2:5]] == [
        "Error: None",
        "Error: ['double']",
        "Error: 5",
    ]
