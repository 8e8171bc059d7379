"""Options of a graph for its node of tools: timeout and retries."""

from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.errors import NodeTimeoutError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.types import RetryPolicy

from callboard import ToolNode

pytestmark = [pytest.mark.backends("asyncio"), pytest.mark.real_clock]

BOTH = pytest.mark.parametrize("node", [ToolNode, LangGraphToolNode], ids=["ours", "theirs"])


def graph(node: Any, tool: Any, **options: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", node([StructuredTool.from_function(coroutine=tool)]), **options)
    builder.add_edge(START, "tools")
    return builder.compile()


def asked(name: str) -> Any:
    return {"messages": [AIMessage("", tool_calls=[{"name": name, "args": {}, "id": "1", "type": "tool_call"}])]}


@BOTH
async def test_a_graph_may_give_the_node_a_timeout(node: Any) -> None:
    """The timeout is LangGraph's, and ends the node with LangGraph's error."""

    async def quick() -> str:
        """Be quick."""
        return "done"

    async def slow() -> str:
        """Be slow."""
        await anyio.sleep(20)
        return "never"

    with anyio.fail_after(10):
        found = await graph(node, quick, timeout=5).ainvoke(asked("quick"))
        with pytest.raises(NodeTimeoutError):
            await graph(node, slow, timeout=0.05).ainvoke(asked("slow"))

    assert found["messages"][-1].content == "done"


@BOTH
async def test_a_graph_may_try_the_node_again(node: Any) -> None:
    """LangGraph's retry policy applies; the node itself raises its tool's error."""
    tried = []

    async def shaky() -> str:
        """Fail once."""
        tried.append(1)
        if len(tried) == 1:
            raise ConnectionError("not yet")
        return "done"

    policy = RetryPolicy(initial_interval=0.001, max_attempts=2, jitter=False)
    with anyio.fail_after(10):
        found = await graph(node, shaky, retry_policy=policy).ainvoke(asked("shaky"))

    assert found["messages"][-1].content == "done"
    assert len(tried) == 2
