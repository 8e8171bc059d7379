"""Two tools of one name: the last one is the tool, as in LangGraph and LangChain, and a warning names both."""

from typing import Any

import pytest
from langchain.agents import create_agent as langchain_create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.tools import BaseTool, tool
from langgraph.prebuilt import create_react_agent as langgraph_create_react_agent

from callboard import DuplicateToolWarning, ToolNode, create_agent, create_react_agent, tool_call
from callboard.middleware import ToolSearch
from callboard.testing import ScriptedModel, calls
from tests.helpers import contents

BOTH = r"two tools are named 'look', .*look_here and .*look_there; the second takes the place of the first"


@tool("look")
async def look_here() -> str:
    """Look here."""
    return "here"


@tool("look")
async def look_there() -> str:
    """Look there."""
    return "there"


class Brings(AgentMiddleware[Any, Any]):
    """Middleware of LangChain with a tool."""

    def __init__(self, name: str, brought: BaseTool) -> None:
        super().__init__()
        self._name = name
        self.tools = [brought]

    @property
    def name(self) -> str:
        return self._name


async def answers_of(make: Any, *args: Any, **options: Any) -> tuple[list[Any], Any]:
    """Return the results of a call of the tool, and the tools that the model is offered."""
    model = ScriptedModel([calls("look"), "done"])
    state = await make(model, *args, **options).ainvoke({"messages": [("user", "go")]})
    return [message.text for message in state["messages"] if message.type == "tool"], model.requested_tools


@pytest.mark.real_clock
@pytest.mark.backends("asyncio")
@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@pytest.mark.parametrize(
    ("make", "make_original"),
    [(create_react_agent, langgraph_create_react_agent), (create_agent, langchain_create_agent)],
)
async def test_the_last_tool_of_a_list_is_used_as_before_the_migration(make: Any, make_original: Any) -> None:
    tools = [look_here, look_there]
    with pytest.warns(DuplicateToolWarning, match=BOTH) as warned:
        answers = await answers_of(make, tools)

    assert len(warned) == 1
    assert answers == await answers_of(make_original, tools)
    assert answers[0] == ["there"]


@pytest.mark.real_clock
@pytest.mark.backends("asyncio")
@pytest.mark.parametrize(
    ("tools", "middleware"),
    [
        ([look_there], [Brings("a", look_here)]),
        ([], [Brings("a", look_here), Brings("b", look_there)]),
    ],
)
async def test_a_tool_of_the_agent_takes_the_place_of_one_of_langchains_middleware(tools: Any, middleware: Any) -> None:
    with pytest.warns(DuplicateToolWarning, match=BOTH):
        answers = await answers_of(create_agent, tools, middleware=middleware)

    assert answers == await answers_of(langchain_create_agent, tools, middleware=middleware)
    assert answers[0] == ["there"]


async def test_a_node_takes_the_last_tool() -> None:
    with pytest.warns(DuplicateToolWarning, match=f"^ToolNode: {BOTH}"):
        node = ToolNode([look_here, look_there])

    assert contents(await node.ainvoke([tool_call("look")])) == ["there"]


def test_a_tool_that_is_given_twice_is_one_tool() -> None:
    assert list(ToolNode([look_here, look_here]).tools_by_name) == ["look"]


def test_a_tool_that_a_middleware_of_callboard_needs_is_not_replaced() -> None:
    """The middleware could not do its work without its own tool."""

    @tool
    async def search_tools(query: str) -> str:
        """Search."""
        return query

    with pytest.raises(ValueError, match="Two tools are named 'search_tools'"):
        ToolNode([search_tools], middleware=[ToolSearch(shown=["search_tools"])])
