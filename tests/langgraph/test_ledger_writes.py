"""The ledger of a node in a graph is written while its calls finish, for the run after a failure."""

import asyncio
from typing import Annotated, Any, TypedDict

import anyio
import pytest
from anyio.lowlevel import checkpoint
from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from callboard import ToolNode, tool_call
from callboard.testing import Recorder, calls


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Saver(InMemorySaver):
    """Saver that notes how many calls each ledger has; an async write takes until `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.released = False

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.sizes += [len(value[-1]["calls"]) for channel, value in writes if channel == "__resume__"]
        super().put_writes(config, writes, task_id, task_path)

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.put_writes(config, writes, task_id, task_path)
        while not self.released:
            await asyncio.sleep(0)


def config_in_node(saver: InMemorySaver) -> RunnableConfig:
    """Return the config that LangGraph passes to a node."""
    configs: list[RunnableConfig] = []

    def node(_: State, config: RunnableConfig) -> Any:
        configs.append(config)
        return {}

    builder: Any = StateGraph(State)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    builder.compile(checkpointer=saver).invoke({"messages": []}, {"configurable": {"thread_id": "t"}})
    return configs[0]


def state_with_calls(*names: str) -> dict[str, Any]:
    return {"messages": [calls(*(tool_call(name, f"id-{number}") for number, name in enumerate(names)))]}


async def test_calls_that_finish_in_the_same_turn_share_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write has all results so far: the writes of a thousand calls, one by one, take more than a second."""
    saver, counted = InMemorySaver(), Saver()
    config = config_in_node(saver)
    monkeypatch.setattr(saver, "put_writes", counted.put_writes)
    await ToolNode([Recorder().tool("quick")]).ainvoke(state_with_calls(*["quick"] * 50), config)
    assert len(counted.sizes) <= 2
    assert counted.sizes[-1] >= 49


@pytest.mark.real_clock
async def test_a_shared_write_is_made_even_if_the_run_is_cancelled() -> None:
    """Calls that finish during a write return at once, and leave their results to the next write."""
    saver, ended = Saver(), list[str]()

    async def first() -> str:
        return "first"

    async def later() -> str:
        while not saver.sizes:
            await checkpoint()
        ended.append("later")
        return "later"

    async def cancelling() -> str:
        while len(ended) < 2:
            await checkpoint()
        await checkpoint()
        scope.cancel()
        try:
            return await anyio.sleep_forever()
        finally:
            saver.released = True

    tools = [StructuredTool.from_function(coroutine=body, description="Run.") for body in (first, later, cancelling)]
    config = config_in_node(saver)
    with anyio.CancelScope() as scope:
        await ToolNode(tools).ainvoke(state_with_calls("first", "later", "later", "cancelling"), config)
    assert scope.cancelled_caught
    assert saver.sizes == [1, 3]
