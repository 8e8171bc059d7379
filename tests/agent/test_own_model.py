"""`agent_model()` returns, in the body of a tool, the model of the agent that calls the tool."""

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState, StateGraph

from callboard import ToolNode, agent_model, create_react_agent
from callboard.testing import ScriptedModel, calls, tool_call

GO: Any = {"messages": [("user", "go")]}


class Looking:
    """Tools that record the model that they find."""

    def __init__(self) -> None:
        self.found: list[BaseChatModel | None] = []

    def of(self) -> list[Any]:
        """Return a tool on the event loop, and one in a thread."""

        async def here() -> str:
            """Look here."""
            self.found.append(agent_model())
            return "seen"

        def there() -> str:
            """Look in a thread."""
            self.found.append(agent_model())
            return "seen"

        return [here, there]


def model_that_looks() -> ScriptedModel:
    return ScriptedModel([calls(("here", {}), ("there", {})), AIMessage("done")])


async def test_a_tool_finds_the_model_of_its_agent_and_nobody_finds_it_afterwards() -> None:
    """The model is returned without bound tools, because the tool's own request should not call them."""
    looking, model = Looking(), model_that_looks()
    await create_react_agent(model, looking.of()).ainvoke(GO)

    assert len(looking.found) == 2
    assert all(found is model for found in looking.found)
    assert agent_model() is None


async def test_the_nearest_agent_counts() -> None:
    """An agent that is a tool of another agent uses its own model, and so does the outer agent."""
    looking, inner, outer = Looking(), model_that_looks(), ScriptedModel([calls(("ask", {}), ("here", {})), "done"])
    inner_agent = create_react_agent(inner, looking.of())
    around: list[BaseChatModel | None] = []

    async def ask() -> str:
        """Ask the other agent."""
        await inner_agent.ainvoke(GO)
        around.append(agent_model())
        return "asked"

    async def here() -> str:
        """Look here."""
        around.append(agent_model())
        return "seen"

    await create_react_agent(outer, [ask, here]).ainvoke(GO)

    assert all(found is inner for found in looking.found)
    assert len(around) == 2
    assert all(found is outer for found in around)


@pytest.mark.backends("asyncio")
async def test_within_a_graph_of_langgraph_it_is_known_too() -> None:
    """The agent is a node of the graph, and its calls belong to it."""
    looking, model = Looking(), model_that_looks()
    graph = StateGraph(MessagesState)
    graph.add_node("agent", create_react_agent(model, looking.of()))
    graph.set_entry_point("agent")
    await graph.compile().ainvoke(GO)

    assert [found is model for found in looking.found] == [True, True]


async def test_where_no_one_model_is_known_there_is_none() -> None:
    """A node has no model, and a model that is chosen for each step is not recorded."""
    looking, model = Looking(), model_that_looks()
    await ToolNode(looking.of()).ainvoke([tool_call("here", "1")])
    chosen: Any = lambda state, runtime: model.bind_tools(looking.of())
    await create_react_agent(chosen, looking.of()).ainvoke(GO)

    assert looking.found == [None, None, None]


def test_by_the_sync_door_it_is_known_too() -> None:
    """With `invoke`, the model is also known in the threads of sync tools."""
    looking, model = Looking(), model_that_looks()
    create_react_agent(model, looking.of()).invoke(GO)

    assert [found is model for found in looking.found] == [True, True]
