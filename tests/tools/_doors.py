"""Two tools that record their calls, and the entry points of a tool node."""

from collections.abc import Callable
from typing import Any

import anyio
from langchain_core.messages import ToolMessage
from langgraph.graph import StateGraph
from langgraph.graph.message import MessagesState

from callboard import ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls, tool_call

WAIT = 20

RUNS: list[str] = []
"""Arguments of all calls of the two tools. Each test clears the list first."""


def delete(path: str) -> str:
    """Delete a file, in a thread."""
    RUNS.append(path)
    return f"deleted {path}"


async def adelete(path: str) -> str:
    """Delete a file."""
    RUNS.append(path)
    return f"deleted {path}"


def reply(*names: str, **args: Any) -> Any:
    return calls(*(tool_call(name, **(args or {"path": "/"})) for name in names))


def contents(result: Any) -> list[str]:
    return [message.content for message in result["messages"] if isinstance(message, ToolMessage)]


def denied(call: Any) -> ToolMessage:
    return ToolMessage("denied", name=call["name"], tool_call_id=call["id"])


async def standalone(node: ToolNode) -> Any:
    return await node.ainvoke({"messages": [reply("delete", "adelete")]})


async def standalone_sync(node: ToolNode) -> Any:
    return await anyio.to_thread.run_sync(lambda: node.invoke({"messages": [reply("delete", "adelete")]}))


def agent_by(version: Any, *, sync: bool) -> Callable[[ToolNode], Any]:
    async def run(node: ToolNode) -> Any:
        agent = create_react_agent(ScriptedModel([reply("delete", "adelete"), "done"]), node, version=version)
        if sync:
            return await anyio.to_thread.run_sync(lambda: agent.invoke({"messages": [("user", "go")]}))
        return await agent.ainvoke({"messages": [("user", "go")]})

    return run


async def graph_sync(node: ToolNode) -> Any:
    builder = StateGraph(MessagesState).add_node("tools", node).set_entry_point("tools")
    graph = builder.compile()
    return await anyio.to_thread.run_sync(lambda: graph.invoke({"messages": [reply("delete", "adelete")]}))


DOORS = {
    "ainvoke": standalone,
    "invoke": standalone_sync,
    "sync graph": graph_sync,
    "agent v1": agent_by("v1", sync=False),
    "agent v2": agent_by("v2", sync=False),
    "sync agent v1": agent_by("v1", sync=True),
    "sync agent v2": agent_by("v2", sync=True),
}
