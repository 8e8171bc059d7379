"""A runtime of another class than LangGraph's, as tests put it into a config."""

from types import SimpleNamespace
from typing import Annotated, Any
from unittest.mock import Mock

import anyio
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.prebuilt import InjectedStore, ToolRuntime
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from callboard import ToolNode
from callboard.testing import calls, tool_call

pytestmark = [
    pytest.mark.real_clock,
    # LangChain dumps the arguments of a tool for callbacks, and the context is not in their schema.
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
]

WAIT = 20


def look(runtime: ToolRuntime[Any, Any], store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Return the runtime's values, and write to the stream."""
    item = store.get(("a",), "b")
    runtime.stream_writer("seen")
    return f"{runtime.context} {item and item.value} {runtime.execution_info} {runtime.server_info}"


@pytest.mark.parametrize("kind", [Mock, SimpleNamespace])
@pytest.mark.backends("asyncio")
async def test_a_runtime_of_another_class_is_read_by_attributes(kind: Any) -> None:
    """`Mock().override(...)` returns a mock again, whose store is not a store."""
    store = InMemoryStore()
    store.put(("a",), "b", {"c": 1})
    written: list[Any] = []
    runtime = kind(store=store, context="ctx", stream_writer=written.append, execution_info=None, server_info="server")
    config: RunnableConfig = {"configurable": {"__pregel_runtime": runtime}}
    state = {"messages": [calls(tool_call("look"))]}
    results: list[str] = []
    for cls in (ToolNode, LangGraphToolNode):
        with anyio.fail_after(WAIT):
            result = await cls([look]).ainvoke(state, config)
        results.append(result["messages"][0].content)
    assert results == ["ctx {'c': 1} None server"] * 2
    assert written == ["seen", "seen"]


async def test_a_runtime_with_nothing_in_it_is_an_error() -> None:
    """A dict in place of a runtime would otherwise be treated as an empty one."""
    config: RunnableConfig = {"configurable": {"__pregel_runtime": {"store": InMemoryStore()}}}
    with anyio.fail_after(WAIT), pytest.raises(TypeError, match="has none of context, store"):
        await ToolNode([look]).ainvoke({"messages": [calls(tool_call("look"))]}, config)
