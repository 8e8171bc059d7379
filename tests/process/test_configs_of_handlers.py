"""Handlers that run in a worker and take the config of the run: plain data is sent, other objects are left out."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from callboard import ToolNode, child, create_react_agent
from callboard.testing import ScriptedModel, calls, tool_call
from callboard_actors.process import Processes

from . import _configured as configured
from ._processes import WAIT

pytestmark = pytest.mark.real_clock

CONFIG: RunnableConfig = {
    "configurable": {"thread_id": "t", "user": "ann", "socket": object()},
    "metadata": {"team": "blue", "lock": object()},
}
CALL = calls(tool_call("look", "1", place="a"), tool_call("look_around", "2", place="b"))
SAID = ['["a", "t", "ann", "blue", []]', '["b", "2", "t"]']


def node() -> ToolNode:
    return ToolNode([child(configured.Desk, runs_in=Processes(workers=1))], handle_tool_errors=False)


async def of_a_node() -> list[Any]:
    async with node() as tools:
        return (await tools.ainvoke({"messages": [CALL]}, CONFIG))["messages"]  # type: ignore[no-any-return]


async def of_a_graph() -> list[Any]:
    builder = StateGraph(MessagesState)
    async with node() as tools:
        builder.add_node("tools", tools)
        builder.add_edge(START, "tools")
        graph = builder.compile(checkpointer=InMemorySaver())
        return (await graph.ainvoke({"messages": [CALL]}, CONFIG))["messages"]  # type: ignore[no-any-return]


async def of_an_agent() -> list[Any]:
    model = ScriptedModel([AIMessage("", tool_calls=CALL.tool_calls), "done"])
    async with create_react_agent(model, node(), checkpointer=InMemorySaver()) as agent:
        return (await agent.ainvoke({"messages": [("user", "go")]}, CONFIG))["messages"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # LangGraph and LangChain support asyncio only
@pytest.mark.parametrize("run", [of_a_node, of_a_graph, of_an_agent])
async def test_a_handler_in_a_worker_reads_the_config_of_the_run(run: Callable[[], Awaitable[list[Any]]]) -> None:
    """Objects that cannot be pickled and LangGraph's internal entries stay in this process."""
    with anyio.fail_after(WAIT):
        found = await run()
    assert [message.content for message in found if message.type == "tool"] == SAID


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_handler_in_a_worker_reads_the_config_of_a_tool_that_is_run_without_its_node() -> None:
    """A tool that LangChain itself runs, without a node, passes the config as well."""
    tools = node().tools_by_name
    with anyio.fail_after(WAIT):
        found = await tools["look"].ainvoke({"place": "a"}, CONFIG)
    assert found == ["a", "t", "ann", "blue", []]
