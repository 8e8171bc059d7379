"""Streams of graphs with a ToolNode: chunks of inner graphs and agents have the namespaces that LangGraph gives.

Readers of a stream identify a subagent by the position and the length of its namespace. The namespaces of callboard's
calls have one more segment, which separates their questions; this segment must not appear in streams.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from ._dump import dump
from ._harness import THREAD, call
from ._model import ReplayModel
from ._prebuilt import candidate, reference

MODES = ["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug", "tools"]

modes = pytest.mark.parametrize("mode", [*MODES, ["updates", "messages", "custom", "tasks"]], ids=str)
doors = pytest.mark.parametrize("door", ["stream", "astream"])


def inner_graph(*, asks: bool = False, **options: Any) -> Any:
    """A graph of one node, which writes, calls a model and answers."""

    def think(state: MessagesState) -> Any:
        get_stream_writer()("inside")
        reply = ReplayModel(AIMessage("thought", id=f"thought about {state['messages'][-1].content}")).invoke("q")
        said = interrupt(f"{reply.content}?") if asks else ""
        return {"messages": [reply, AIMessage(f"answer {said}", id=f"answer to {state['messages'][-1].content}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_edge(START, "think")
    return builder.compile(**options)


def delegate_to(graph: Any) -> BaseTool:
    """A tool that runs a graph, and writes to the stream before and after."""

    @tool
    def delegate(x: int) -> str:
        """Delegate."""
        get_stream_writer()(f"before {x}")
        result = graph.invoke({"messages": [HumanMessage(f"{x}", id=f"h{x}")]})
        get_stream_writer()(f"after {x}")
        return str(result["messages"][-1].content)

    return delegate


def graph_of(ns: Any, tools: list[BaseTool], *calls: Any, send: bool = False, **options: Any) -> Any:
    """A graph with callboard's or LangGraph's tool node, after a node that asks for calls."""
    builder = StateGraph(MessagesState)
    reply = AIMessage("", tool_calls=list(calls), id="ai")
    builder.add_node("decide", lambda state: {"messages": [reply]})
    builder.add_node("tools", ns.ToolNode(tools))
    builder.add_edge(START, "decide")
    if send:
        builder.add_conditional_edges("decide", lambda state: [Send("tools", [one]) for one in calls], ["tools"])
    else:
        builder.add_edge("decide", "tools")
    return builder.compile(**options)


def told(graph: Any, mode: Any, door: str, *inputs: Any) -> list[list[Any]]:
    """Return the chunks of several runs one after the other."""

    async def chunks(given: Any) -> list[Any]:
        return [one async for one in graph.astream(given, THREAD, stream_mode=mode, subgraphs=True)]

    def all_of(given: Any) -> list[Any]:
        if door == "astream":
            return asyncio.run(chunks(given))
        return list(graph.stream(given, THREAD, stream_mode=mode, subgraphs=True))

    return [[_settled(dump(chunk)) for chunk in all_of(given)] for given in inputs]


def _settled(value: Any) -> Any:
    """Return chunks without times and result ids, which LangGraph assigns later in some modes."""
    if isinstance(value, dict):
        kept = {key: _settled(item) for key, item in value.items() if key != "timestamp"}
        return {**kept, "id": "<random>"} if value.get("message") == "ToolMessage" else kept
    return [_settled(item) for item in value] if isinstance(value, list) else value


def same(make: Callable[[Any], Any], mode: Any, door: str, *inputs: Any, ordered: bool = True) -> list[list[Any]]:
    expected, actual = (told(make(ns), mode, door, *inputs) for ns in (reference(), candidate()))
    if not ordered:
        expected, actual = ([sorted(chunks, key=str) for chunks in runs] for runs in (expected, actual))

    assert actual == expected, f"\ncallboard: {actual}\nlanggraph: {expected}"
    return expected


QUESTION = {"messages": [HumanMessage("q", id="q")]}


@doors
@modes
@pytest.mark.parametrize("send", [True, False], ids=["sent", "state"])
def test_a_graph_in_a_tool_is_heard_under_the_task(send: bool, mode: Any, door: str) -> None:
    tools = [delegate_to(inner_graph())]
    chunks = same(lambda ns: graph_of(ns, tools, call("delegate", {"x": 1}), send=send), mode, door, QUESTION)

    assert mode in ("tools", "checkpoints") or "tools:" in str(chunks)


def paths(chunks: Any) -> set[str]:
    return {str(chunk[1]) for chunk in chunks}


@doors
@modes
def test_two_graphs_of_one_call_are_told_apart_by_a_number(mode: Any, door: str) -> None:
    @tool
    def delegate(x: int) -> str:
        """Delegate twice."""
        for turn in range(2):
            inner_graph().invoke({"messages": [HumanMessage(f"{turn}", id=f"h{turn}")]})
            get_stream_writer()(f"after {turn}")
        return "done"

    chunks = same(lambda ns: graph_of(ns, [delegate], call("delegate", {"x": 1})), mode, door, QUESTION)

    assert mode in ("tools", "checkpoints") or "'1']" in str(chunks)


@modes
def test_graphs_of_two_calls_are_told_apart_by_a_number(mode: Any) -> None:
    """The two graphs run concurrently in any order, but their chunks are equal."""

    async def answer(x: int) -> str:
        result = await inner_graph().ainvoke({"messages": [HumanMessage(f"{x}", id=f"h{x}")]})
        get_stream_writer()(f"after {x}")
        return str(result["messages"][-1].content)

    @tool
    async def first(x: int) -> str:
        """Delegate."""
        return await answer(x)

    @tool
    async def second(x: int) -> str:
        """Delegate later."""
        await asyncio.sleep(0.02)
        return await answer(x)

    calls = [call("first", {"x": 1}, "a"), call("second", {"x": 2}, "b")]
    chunks = same(lambda ns: graph_of(ns, [first, second], *calls), mode, "astream", QUESTION, ordered=False)

    assert mode in ("tools", "checkpoints") or "'1']" in str(chunks)


@doors
@modes
def test_an_agent_in_a_tool_is_heard_under_the_task(mode: Any, door: str) -> None:
    """The agent is LangGraph's in both cases, so that its chunks are comparable."""
    replies = [AIMessage("", tool_calls=[call("double", {"x": 2}, "inner")], id="i1"), AIMessage("four", id="i2")]

    @tool
    def double(x: int) -> int:
        """Double."""
        get_stream_writer()("doubling")
        return 2 * x

    def make(ns: Any) -> Any:
        agent = reference().create_react_agent(ReplayModel(*replies), ns.ToolNode([double]), version="v1")
        return graph_of(ns, [delegate_to(agent)], call("delegate", {"x": 1}))

    chunks = same(make, mode, door, QUESTION)

    assert mode == "checkpoints" or "tools:" in str(chunks)


@doors
@pytest.mark.parametrize("mode", ["values", "updates", "messages", "custom", "tools"])
def test_an_agent_of_ours_in_a_tool_is_heard_under_the_task(mode: Any, door: str) -> None:
    replies = [AIMessage("", tool_calls=[call("double", {"x": 2}, "inner")], id="i1"), AIMessage("four", id="i2")]

    @tool
    def double(x: int) -> int:
        """Double."""
        get_stream_writer()("doubling")
        return 2 * x

    def make(ns: Any) -> Any:
        agent = ns.create_react_agent(ReplayModel(*replies), [double], version="v1")
        return graph_of(ns, [delegate_to(agent)], call("delegate", {"x": 1}))

    chunks = same(make, mode, door, QUESTION)

    assert "tools:" in str(chunks) or mode == "tools"


@modes
def test_a_graph_two_nodes_deep_is_heard_under_both_tasks(mode: Any) -> None:
    """A tool runs a graph with a tool node, and a tool of this node runs another graph."""

    def make(ns: Any) -> Any:
        inner = graph_of(ns, [delegate_to(inner_graph())], call("delegate", {"x": 2}, "b"))
        return graph_of(ns, [delegate_to(inner)], call("delegate", {"x": 1}, "a"))

    chunks = same(make, mode, "stream", QUESTION)

    assert mode in ("tools", "checkpoints") or any(path.count("tools:") == 2 for path in paths(chunks[0]))


@modes
def test_a_graph_of_a_node_that_a_tool_runs_is_heard_under_the_task(mode: Any) -> None:
    """The tool runs a graph and then a tool node directly, without a graph in between."""

    def make(ns: Any) -> Any:
        inner = ns.ToolNode([delegate_to(inner_graph())])

        @tool
        async def outer(x: int) -> str:
            """Run a node."""
            await inner_graph().ainvoke({"messages": [HumanMessage("first", id="first")]})
            get_stream_writer()("between")
            found = await inner.ainvoke([{**call("delegate", {"x": 2}, "b"), "type": "tool_call"}])
            get_stream_writer()("after")
            return str(found["messages"][-1].content)

        return graph_of(ns, [outer], call("outer", {"x": 1}, "a"))

    chunks = same(make, mode, "astream", QUESTION)

    assert mode in ("tools", "checkpoints") or "'1']" in str(chunks)


@modes
@doors
def test_a_question_in_a_graph_of_a_tool_and_its_answer_are_heard_under_the_task(mode: Any, door: str) -> None:
    """The stored namespace includes the call; chunks show it only in the address of a checkpoint."""

    def make(ns: Any) -> Any:
        tools = [delegate_to(inner_graph(asks=True))]
        return graph_of(ns, tools, call("delegate", {"x": 1}), checkpointer=InMemorySaver())

    runs = [told(make(ns), mode, door, QUESTION, Command(resume="yes")) for ns in (reference(), candidate())]
    expected, actual = (re.sub(r"\|call:call-1", "", str(chunks)) for chunks in runs)

    assert actual == expected
    assert [paths(chunks) for chunks in runs[1]] == [paths(chunks) for chunks in runs[0]]


@pytest.mark.parametrize("mode", ["values", "updates", "messages", "custom"])
def test_a_graph_that_goes_on_with_one_conversation_is_heard_under_the_node(mode: Any) -> None:
    def make(ns: Any) -> Any:
        tools = [delegate_to(inner_graph(checkpointer=True))]
        return graph_of(ns, tools, call("delegate", {"x": 1}), checkpointer=InMemorySaver())

    chunks = same(make, mode, "stream", QUESTION)

    assert "['tuple', 'tools']" in paths(chunks[0])


def test_what_a_stream_says_of_a_checkpoint_is_where_it_is() -> None:
    """The address in the payload contains the call's namespace; the namespace of the chunk does not."""
    tools = [delegate_to(inner_graph(asks=True))]
    graph = graph_of(candidate(), tools, call("delegate", {"x": 1}), checkpointer=InMemorySaver())

    chunks = list(graph.stream(QUESTION, THREAD, stream_mode="checkpoints", subgraphs=True))

    (path, inner) = [chunk for chunk in chunks if chunk[0]][-1]
    assert len(path) == 1
    assert graph.get_state(inner["config"]).values == inner["values"]
