"""Options of a run besides its input: keywords, runtime and control; options of a graph for its node of tools."""

import asyncio
from types import SimpleNamespace
from typing import Annotated, Any
from unittest.mock import Mock

import anyio
import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained, NodeTimeoutError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore, ToolRuntime
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.runtime import RunControl, Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import RetryPolicy

from callboard import ToolNode, tool_call
from callboard.testing import calls

from ._harness import QUESTION, THREAD, asks, call, double, versions, wants
from ._model import ReplayModel
from ._prebuilt import candidate, reference

WAIT = 20
ON_ASYNCIO = pytest.mark.backends("asyncio")
NODES = (ToolNode, LangGraphToolNode)


def replies() -> ReplayModel:
    return ReplayModel(asks(call("double", {"x": 2})), "done")


DOORS = [
    ("create_react_agent", "invoke"),
    ("create_react_agent", "ainvoke"),
    ("create_react_agent", "stream"),
    ("create_react_agent", "astream"),
    *((kind, door) for kind in ("ToolNode", "ValidationNode") for door in ("invoke", "ainvoke")),
]


@pytest.mark.parametrize(("kind", "door"), DOORS)
def test_an_unknown_keyword_is_an_error(kind: str, door: str) -> None:
    """Promise 13: LangGraph's agent and some of its nodes ignore `cofig=` silently, and run without a config."""
    is_agent, make = kind == "create_react_agent", getattr(candidate(), kind)
    runner: Any = make(replies(), [double]) if is_agent else make([double])
    with pytest.raises(TypeError, match="'cofig'"):
        _drive(getattr(runner, door)(QUESTION if is_agent else wants("double", {"x": 2}), cofig=THREAD))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("door", ["invoke", "ainvoke"])
def test_a_node_takes_a_runtime_by_keyword_as_langgraphs_does(door: str) -> None:
    """Tests of tools pass a runtime to a node without a graph."""
    store = InMemoryStore()

    def run(ns: Any) -> Any:
        runtime_facts: list[Any] = []

        @tool
        def look(runtime: ns.ToolRuntime) -> str:  # type: ignore[name-defined]
            """Look."""
            runtime_facts.append((runtime.context, runtime.store is store))
            return "seen"

        own_runtime = Runtime(context="ann", store=store)
        _drive(getattr(ns.ToolNode([look]), door)(wants("look"), runtime=own_runtime))
        return runtime_facts

    assert run(candidate()) == run(reference()) == [("ann", True)]


def _drive(outcome: Any) -> Any:
    if asyncio.iscoroutine(outcome):
        return asyncio.run(outcome)
    if hasattr(outcome, "__anext__"):
        return asyncio.run(_all(outcome))
    return list(outcome)


async def _all(chunks: Any) -> list[Any]:
    return [chunk async for chunk in chunks]


def drain_run(ns: Any, version: str, drive: Any) -> Any:
    """Return a run that a tool asks to stop, and the thread's state then and after it has continued."""
    control = RunControl()

    @tool
    async def leave(x: int) -> str:
        """Ask the run to stop."""
        control.request_drain("the machine goes down")
        return "left"

    model = ReplayModel(asks(call("leave", {"x": 1})), "done")
    agent = ns.create_react_agent(model, [leave], version=version, checkpointer=InMemorySaver())
    with pytest.raises(GraphDrained) as raised:
        drive(agent, control)
    stopped = agent.get_state(THREAD)
    request_count = len(model.log)
    result = asyncio.run(agent.ainvoke(None, THREAD))
    facts = (str(raised.value), raised.value.reason, stopped.next, request_count, len(model.log))
    return facts, [(message.type, message.content) for message in result["messages"]], agent.get_state(THREAD).next


DRIVES: dict[str, Any] = {
    "ainvoke": lambda agent, control: asyncio.run(agent.ainvoke(QUESTION, THREAD, control=control)),
    "astream": lambda agent, control: asyncio.run(_all(agent.astream(QUESTION, THREAD, control=control))),
    "invoke": lambda agent, control: agent.invoke(QUESTION, THREAD, control=control),
}


@versions
@pytest.mark.parametrize("door", DRIVES)
def test_a_run_that_is_asked_to_stop_does_so_before_its_next_step_and_can_go_on(version: str, door: str) -> None:
    """For servers that shut down: the current step ends, no further step begins, and no result is lost."""
    facts = drain_run(candidate(), version, DRIVES[door])
    # LangGraph's `invoke` does not run the async tool at all.
    assert facts == drain_run(reference(), version, DRIVES["ainvoke" if door == "invoke" else door])
    assert facts[0] == ("Graph drained: the machine goes down", "the machine goes down", ("agent",), 1, 2)


@versions
def test_a_run_that_is_asked_to_stop_before_it_begins_keeps_its_input(version: str) -> None:
    """No model is asked, and the thread can be continued; LangGraph makes a step for the input alone."""

    def run(ns: Any) -> Any:
        control, model = RunControl(), replies()
        control.request_drain()
        agent = ns.create_react_agent(model, [double], version=version, checkpointer=InMemorySaver())
        with pytest.raises(GraphDrained, match="shutdown"):
            asyncio.run(agent.ainvoke(QUESTION, THREAD, control=control))
        requests = list(model.log)
        result = asyncio.run(agent.ainvoke(None, THREAD))
        return requests, [(message.type, message.content) for message in result["messages"]]

    assert run(candidate()) == run(reference())
    assert run(candidate())[0] == []


@versions
def test_an_agent_in_a_graph_stops_when_the_graph_is_asked_to(version: str) -> None:
    """The agent uses the control object of the surrounding graph."""

    def run(ns: Any) -> Any:
        control = RunControl()

        @tool
        async def leave(x: int) -> str:
            """Ask the run to stop."""
            control.request_drain()
            return "left"

        model = ReplayModel(asks(call("leave", {"x": 1})), "done")
        builder = StateGraph(MessagesState)
        builder.add_node("worker", ns.create_react_agent(model, [leave], version=version))
        builder.add_edge(START, "worker")
        graph: Any = builder.compile(checkpointer=InMemorySaver())
        with pytest.raises(GraphDrained):
            asyncio.run(graph.ainvoke(QUESTION, THREAD, control=control))
        stopped = graph.get_state(THREAD).next
        result = asyncio.run(graph.ainvoke(None, THREAD))
        return stopped, len(model.log), [(message.type, message.content) for message in result["messages"]]

    assert run(candidate()) == run(reference())


def look(runtime: ToolRuntime[Any, Any], store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Return the runtime's values, and write to the stream."""
    item = store.get(("a",), "b")
    runtime.stream_writer("seen")
    return f"{runtime.context} {item and item.value} {runtime.execution_info} {runtime.server_info}"


@pytest.mark.parametrize("kind", [Mock, SimpleNamespace])
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@ON_ASYNCIO
@pytest.mark.real_clock
async def test_a_runtime_of_another_class_is_read_by_attributes(kind: Any) -> None:
    """`Mock().override(...)` returns a mock again, whose store is not a store."""
    store = InMemoryStore()
    store.put(("a",), "b", {"c": 1})
    written: list[Any] = []
    runtime = kind(store=store, context="ctx", stream_writer=written.append, execution_info=None, server_info="server")
    config: RunnableConfig = {"configurable": {"__pregel_runtime": runtime}}
    state = {"messages": [calls(tool_call("look"))]}
    results: list[str] = []
    for cls in NODES:
        with anyio.fail_after(WAIT):
            result = await cls([look]).ainvoke(state, config)
        results.append(result["messages"][0].content)
    assert results == ["ctx {'c': 1} None server"] * 2
    assert written == ["seen", "seen"]


@pytest.mark.real_clock
async def test_a_runtime_with_nothing_in_it_is_an_error() -> None:
    """A dict in place of a runtime would otherwise be treated as an empty one."""
    config: RunnableConfig = {"configurable": {"__pregel_runtime": {"store": InMemoryStore()}}}
    with pytest.raises(TypeError, match="has none of context, store"):
        await ToolNode([look]).ainvoke({"messages": [calls(tool_call("look"))]}, config)


BOTH = pytest.mark.parametrize("node", NODES, ids=["ours", "theirs"])


async def run_once(node: Any, tool: Any, **options: Any) -> Any:
    """Run a tool once, as a node of a graph with these options."""
    builder = StateGraph(MessagesState)
    builder.add_node("tools", node([StructuredTool.from_function(coroutine=tool)]), **options)
    builder.add_edge(START, "tools")
    with anyio.fail_after(WAIT):
        return await builder.compile().ainvoke({"messages": [asks(call(tool.__name__))]})


@BOTH
@ON_ASYNCIO
@pytest.mark.real_clock
async def test_a_graph_may_give_the_node_a_timeout(node: Any) -> None:
    """The timeout is LangGraph's, and ends the node with LangGraph's error."""

    async def quick() -> str:
        """Be quick."""
        return "done"

    async def slow() -> str:
        """Be slow."""
        await anyio.sleep(20)
        return "never"

    result = await run_once(node, quick, timeout=5)
    with pytest.raises(NodeTimeoutError):
        await run_once(node, slow, timeout=0.05)
    assert result["messages"][-1].content == "done"


@BOTH
@ON_ASYNCIO
@pytest.mark.real_clock
async def test_a_graph_may_try_the_node_again(node: Any) -> None:
    """LangGraph's retry policy applies; the node itself raises its tool's error."""
    tried = []

    async def shaky() -> str:
        """Fail once."""
        tried.append(1)
        if len(tried) == 1:
            raise ConnectionError("not yet")
        return "done"

    result = await run_once(node, shaky, retry_policy=RetryPolicy(initial_interval=0.001, max_attempts=2, jitter=False))
    assert result["messages"][-1].content == "done"
    assert len(tried) == 2
