"""Keys of the config that tools and hooks get: a new key of LangGraph is seen here, and not by a user's tool."""

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents.middleware import before_model
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from ._harness import State, asks, call
from ._model import ReplayModel
from ._prebuilt import candidate, reference

Keys = dict[str, tuple[set[str], set[str]]]
"""Keys of `configurable`, and of the metadata, of a tool and of a hook."""


class Seen:
    """Tool and hook that note the keys of their configs."""

    def __init__(self) -> None:
        self.keys: Keys = {}

        @tool
        def look(x: int, config: RunnableConfig) -> str:
            """Look."""
            self.note("tool", config)
            return "seen"

        self.tool: Any = look

    def note(self, name: str, config: RunnableConfig) -> None:
        self.keys[name] = {*config["configurable"]}, {*config["metadata"]}

    def hook(self, state: Any, config: RunnableConfig) -> dict[str, Any]:
        self.note("hook", config)
        return {}


def in_graph(ns: Any, recorder: Seen, *, is_sent: bool = False) -> tuple[Any, Any]:
    builder: Any = StateGraph(State)
    builder.add_node("tools", ns.ToolNode([recorder.tool]))
    if is_sent:
        builder.add_conditional_edges(START, lambda state: [Send("tools", state["messages"][-1].tool_calls)])
    else:
        builder.add_edge(START, "tools")
    return builder.compile(checkpointer=InMemorySaver()), asks(call("look", {"x": 1}))


def in_agent(ns: Any, recorder: Seen) -> tuple[Any, Any]:
    agent = ns.create_react_agent(
        replies(), [recorder.tool], pre_model_hook=recorder.hook, checkpointer=InMemorySaver()
    )
    return agent, ("user", "go")


def in_langchains_agent(ns: Any, recorder: Seen) -> tuple[Any, Any]:
    @before_model
    def hook(state: Any, runtime: Any) -> None:
        recorder.note("hook", get_config())

    return ns.create_agent(replies(), [recorder.tool], middleware=[hook], checkpointer=InMemorySaver()), ("user", "go")


def replies() -> ReplayModel:
    return ReplayModel(asks(call("look", {"x": 1})), "done")


def keys_in(build: Callable[[Any, Seen], tuple[Any, Any]], ns: Any) -> Keys:
    recorder = Seen()
    runnable, message = build(ns, recorder)
    config = {"configurable": {"thread_id": "1", "mine": 1}, "metadata": {"own": 1}}
    runnable.invoke({"messages": [message]}, config)
    return recorder.keys


DIFFERENT = {
    "__pregel_call",
    "__pregel_read_state",
    "__pregel_replay_state",
    "__pregel_resuming",
    "checkpoint_ns",
}
"""Keys that an agent of callboard may have more or less: of functions with `@task`, of readers and of resumed graphs,
which find what they need elsewhere, and the namespace in the metadata of tools."""


@pytest.mark.parametrize(
    "build", [in_graph, lambda *arguments: in_graph(*arguments, is_sent=True), in_agent, in_langchains_agent]
)
def test_tools_and_hooks_get_the_keys_that_langgraph_gives(build: Any) -> None:
    expected_keys, actual_keys = keys_in(build, reference()), keys_in(build, candidate())
    assert actual_keys.keys() == expected_keys.keys()
    allowed = DIFFERENT if "hook" in expected_keys else set()
    for name, parts in expected_keys.items():
        for expected, actual in zip(parts, actual_keys[name], strict=True):
            assert expected ^ actual <= allowed, f"{name}: missing {expected - actual}, more {actual - expected}"
