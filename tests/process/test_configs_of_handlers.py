"""Handlers that run in a worker and take the config of the run: plain data is sent, other objects are left out."""

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


def said(messages: list[Any]) -> list[str]:
    return [message.content for message in messages if message.type == "tool"]


async def test_a_handler_in_a_worker_reads_the_config_of_a_node_that_is_awaited_alone() -> None:
    """Objects in `configurable` that cannot be pickled are left out of the config."""
    with anyio.fail_after(WAIT):
        async with node() as tools:
            found = await tools.ainvoke({"messages": [CALL]}, CONFIG)
    assert said(found["messages"]) == SAID


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # LangGraph and LangChain support asyncio only
async def test_a_handler_in_a_worker_reads_the_config_of_a_graph() -> None:
    """LangGraph's internal entries of the config stay in the process of the graph."""
    builder = StateGraph(MessagesState)
    with anyio.fail_after(WAIT):
        async with node() as tools:
            builder.add_node("tools", tools)
            builder.add_edge(START, "tools")
            graph = builder.compile(checkpointer=InMemorySaver())
            found = await graph.ainvoke({"messages": [CALL]}, CONFIG)
    assert said(found["messages"]) == SAID


async def test_a_handler_in_a_worker_reads_the_config_of_an_agent() -> None:
    """The config reaches the handler when the agent has a checkpointer, too."""
    model = ScriptedModel([AIMessage("", tool_calls=CALL.tool_calls), "done"])
    agent = create_react_agent(model, node(), checkpointer=InMemorySaver())
    with anyio.fail_after(WAIT):
        async with agent:
            found = await agent.ainvoke({"messages": [("user", "go")]}, CONFIG)
    assert said(found["messages"]) == SAID


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # LangGraph and LangChain support asyncio only
async def test_a_handler_in_a_worker_reads_the_config_of_a_tool_that_is_run_without_its_node() -> None:
    """A tool that LangChain itself runs, without a node, passes the config as well."""
    tools = node().tools_by_name
    with anyio.fail_after(WAIT):
        found = await tools["look"].ainvoke({"place": "a"}, CONFIG)
    assert found == ["a", "t", "ann", "blue", []]
