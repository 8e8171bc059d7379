"""Streams of graphs with a ToolNode: chunks of inner graphs and agents have the namespaces that LangGraph gives.

Readers of a stream identify a subagent by the position and the length of its namespace. The namespaces of callboard's
calls have one more segment, which separates their questions; this segment must not appear in streams.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

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

ALL_MODES: list[Any] = [*MODES, ["updates", "messages", "custom", "tasks"]]


def inner_graph(*, asks: bool = False, **options: Any) -> Any:
    """A graph of one node, which writes, calls a model and answers."""

    def think(state: MessagesState) -> Any:
        get_stream_writer()("inside")
        reply = ReplayModel(AIMessage("thought", id=f"thought about {state['messages'][-1].content}")).invoke("q")
        answer = interrupt(f"{reply.content}?") if asks else ""
        return {"messages": [reply, AIMessage(f"answer {answer}", id=f"answer to {state['messages'][-1].content}")]}

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
        builder.add_conditional_edges(
            "decide", lambda state: [Send("tools", [tool_call]) for tool_call in calls], ["tools"]
        )
    else:
        builder.add_edge("decide", "tools")
    return builder.compile(**options)


def stream_chunks(graph: Any, mode: Any, door: str, *inputs: Any) -> list[list[Any]]:
    """Return the chunks of several runs one after the other."""

    async def chunks(value: Any) -> list[Any]:
        return [part async for part in graph.astream(value, THREAD, stream_mode=mode, subgraphs=True)]

    def all_of(value: Any) -> list[Any]:
        if door == "astream":
            return asyncio.run(chunks(value))
        return list(graph.stream(value, THREAD, stream_mode=mode, subgraphs=True))

    return [[_settle(dump(chunk)) for chunk in all_of(run_input)] for run_input in inputs]


def _settle(value: Any) -> Any:
    """Return chunks without times and result ids, which LangGraph assigns later in some modes."""
    if isinstance(value, dict):
        settled = {key: _settle(item) for key, item in value.items() if key != "timestamp"}
        return {**settled, "id": "<random>"} if value.get("message") == "ToolMessage" else settled
    return [_settle(item) for item in value] if isinstance(value, list) else value


QUESTION = {"messages": [HumanMessage("q", id="q")]}


def paths(chunks: Any) -> set[str]:
    return {str(chunk[1]) for chunk in chunks}


@tool
def double(x: int) -> int:
    """Double."""
    get_stream_writer()("doubling")
    return 2 * x


@tool
def delegate_twice(x: int) -> str:
    """Delegate twice."""
    for turn in range(2):
        inner_graph().invoke({"messages": [HumanMessage(f"{turn}", id=f"h{turn}")]})
        get_stream_writer()(f"after {turn}")
    return "done"


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


REPLIES = [AIMessage("", tool_calls=[call("double", {"x": 2}, "inner")], id="i1"), AIMessage("four", id="i2")]
DELEGATE = call("delegate", {"x": 1}, "a")


def graph_in_a_tool(ns: Any, *, send: bool = False) -> Any:
    return graph_of(ns, [delegate_to(inner_graph())], DELEGATE, send=send)


def langgraphs_agent(ns: Any) -> Any:
    """An agent of LangGraph on both sides, so that its chunks are comparable in each mode."""
    agent = reference().create_react_agent(ReplayModel(*REPLIES), ns.ToolNode([double]), version="v1")
    return graph_of(ns, [delegate_to(agent)], DELEGATE)


def own_agent(ns: Any) -> Any:
    agent = ns.create_react_agent(ReplayModel(*REPLIES), [double], version="v1")
    return graph_of(ns, [delegate_to(agent)], DELEGATE)


def two_calls(ns: Any) -> Any:
    return graph_of(ns, [first, second], call("first", {"x": 1}, "a"), call("second", {"x": 2}, "b"))


def two_nodes_deep(ns: Any) -> Any:
    """A tool runs a graph with a tool node, and a tool of this node runs another graph."""
    inner = graph_of(ns, [delegate_to(inner_graph())], call("delegate", {"x": 2}, "b"))
    return graph_of(ns, [delegate_to(inner)], DELEGATE)


def node_in_a_tool(ns: Any) -> Any:
    """The tool runs a graph and then a tool node directly, without a graph in between."""
    inner = ns.ToolNode([delegate_to(inner_graph())])

    @tool
    async def outer(x: int) -> str:
        """Run a node."""
        await inner_graph().ainvoke({"messages": [HumanMessage("first", id="first")]})
        get_stream_writer()("between")
        result = await inner.ainvoke([call("delegate", {"x": 2}, "b")])
        get_stream_writer()("after")
        return str(result["messages"][-1].content)

    return graph_of(ns, [outer], call("outer", {"x": 1}, "a"))


def one_conversation(ns: Any) -> Any:
    tools = [delegate_to(inner_graph(checkpointer=True))]
    return graph_of(ns, tools, DELEGATE, checkpointer=InMemorySaver())


class Inside(NamedTuple):
    """A graph with graphs in its tools, and a text by which its chunks show them."""

    make: Callable[[Any], Any]
    shows: str
    modes: Sequence[Any] = ALL_MODES
    doors: Sequence[str] = ("stream", "astream")
    silent: Sequence[str] = ("tools", "checkpoints")
    """Modes whose chunks do not show them."""
    ordered: bool = True


GRAPHS: dict[str, Inside] = {
    "a graph": Inside(graph_in_a_tool, "tools:"),
    "a graph of a call that is sent": Inside(partial(graph_in_a_tool, send=True), "tools:"),
    "two graphs of one call, by a number": Inside(
        lambda ns: graph_of(ns, [delegate_twice], call("delegate_twice", {"x": 1})), "'1']"
    ),
    # The two graphs run concurrently in any order, but their chunks are equal.
    "graphs of two calls, by a number": Inside(two_calls, "'1']", doors=["astream"], ordered=False),
    "an agent of LangGraph": Inside(langgraphs_agent, "tools:", silent=["checkpoints"]),
    "an agent": Inside(own_agent, "tools:", modes=["values", "updates", "messages", "custom", "tools"]),
    "a graph two nodes deep": Inside(two_nodes_deep, "'tools:<random>', 'tools:", doors=["stream"]),
    "a graph of a node that a tool runs": Inside(node_in_a_tool, "'1']", doors=["astream"]),
    "a graph with one conversation, under the node": Inside(
        one_conversation, "['tuple', 'tools']", modes=["values", "updates", "messages", "custom"], doors=["stream"]
    ),
}


@pytest.mark.parametrize(
    ("label", "mode", "door"),
    [(label, mode, door) for label, entry in GRAPHS.items() for mode in entry.modes for door in entry.doors],
    ids=str,
)
def test_what_a_tool_runs_is_heard_under_its_task(label: str, mode: Any, door: str) -> None:
    inside = GRAPHS[label]
    expected, actual = (stream_chunks(inside.make(ns), mode, door, QUESTION) for ns in (reference(), candidate()))
    if not inside.ordered:
        expected, actual = ([sorted(chunks, key=str) for chunks in runs] for runs in (expected, actual))
    assert actual == expected, f"\ncallboard: {actual}\nlanggraph: {expected}"
    assert mode in inside.silent or inside.shows in str(expected)


@pytest.mark.parametrize("mode", ALL_MODES, ids=str)
@pytest.mark.parametrize("door", ["stream", "astream"])
def test_a_question_in_a_graph_of_a_tool_and_its_answer_are_heard_under_the_task(mode: Any, door: str) -> None:
    """The stored namespace includes the call; chunks show it only in the address of a checkpoint."""

    def make(ns: Any) -> Any:
        tools = [delegate_to(inner_graph(asks=True))]
        return graph_of(ns, tools, call("delegate", {"x": 1}), checkpointer=InMemorySaver())

    runs = [stream_chunks(make(ns), mode, door, QUESTION, Command(resume="yes")) for ns in (reference(), candidate())]
    expected, actual = (re.sub(r"\|call:call-1", "", str(chunks)) for chunks in runs)
    assert actual == expected
    assert [paths(chunks) for chunks in runs[1]] == [paths(chunks) for chunks in runs[0]]


def test_what_a_stream_says_of_a_checkpoint_is_where_it_is() -> None:
    """The address in the payload contains the call's namespace; the namespace of the chunk does not."""
    tools = [delegate_to(inner_graph(asks=True))]
    graph = graph_of(candidate(), tools, call("delegate", {"x": 1}), checkpointer=InMemorySaver())
    chunks = list(graph.stream(QUESTION, THREAD, stream_mode="checkpoints", subgraphs=True))

    (path, inner) = [chunk for chunk in chunks if chunk[0]][-1]
    assert len(path) == 1
    assert graph.get_state(inner["config"]).values == inner["values"]
