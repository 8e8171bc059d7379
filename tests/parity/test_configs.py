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


def in_graph(ns: Any, seen: Seen, *, sent: bool = False) -> tuple[Any, Any]:
    builder: Any = StateGraph(State)
    builder.add_node("tools", ns.ToolNode([seen.tool]))
    if sent:
        builder.add_conditional_edges(START, lambda state: [Send("tools", state["messages"][-1].tool_calls)])
    else:
        builder.add_edge(START, "tools")
    return builder.compile(checkpointer=InMemorySaver()), asks(call("look", {"x": 1}))


def in_agent(ns: Any, seen: Seen) -> tuple[Any, Any]:
    agent = ns.create_react_agent(replies(), [seen.tool], pre_model_hook=seen.hook, checkpointer=InMemorySaver())
    return agent, ("user", "go")


def in_langchains_agent(ns: Any, seen: Seen) -> tuple[Any, Any]:
    @before_model
    def hook(state: Any, runtime: Any) -> None:
        seen.note("hook", get_config())

    return ns.create_agent(replies(), [seen.tool], middleware=[hook], checkpointer=InMemorySaver()), ("user", "go")


def replies() -> ReplayModel:
    return ReplayModel(asks(call("look", {"x": 1})), "done")


def keys_in(build: Callable[[Any, Seen], tuple[Any, Any]], ns: Any) -> Keys:
    seen = Seen()
    runnable, message = build(ns, seen)
    config = {"configurable": {"thread_id": "1", "mine": 1}, "metadata": {"own": 1}}
    runnable.invoke({"messages": [message]}, config)
    return seen.keys


DIFFERENT = {
    "__pregel_call",
    "__pregel_read_state",
    "__pregel_replay_state",
    "__pregel_resuming",
    "checkpoint_ns",
}
"""Keys that an agent of callboard may have more or less: of functions with `@task`, of readers and of resumed graphs,
which find what they need elsewhere, and the namespace in the metadata of tools."""


@pytest.mark.parametrize("build", [in_graph, lambda *given: in_graph(*given, sent=True), in_agent, in_langchains_agent])
def test_tools_and_hooks_get_the_keys_that_langgraph_gives(build: Any) -> None:
    theirs, ours = keys_in(build, reference()), keys_in(build, candidate())
    assert ours.keys() == theirs.keys()
    allowed = DIFFERENT if "hook" in theirs else set()
    for name, parts in theirs.items():
        for expected, found in zip(parts, ours[name], strict=True):
            assert expected ^ found <= allowed, f"{name}: missing {expected - found}, more {found - expected}"
