"""Streams of agents within a graph or a call, compared with LangGraph's agent."""

import warnings
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent as langgraphs
from langgraph.types import Command

from callboard import create_react_agent
from callboard.testing import ScriptedModel, calls, tool_call

from ._graphs import AT, QUESTION, WAIT, Desk, chain, delegate, hand_off
from ._savers import shape

pytestmark = pytest.mark.real_clock

on_asyncio = pytest.mark.backends("asyncio")
"""LangGraph's own graphs run on asyncio only."""


def langgraphs_agent(*args: Any, **options: Any) -> Any:
    """LangGraph's agent, which callboard's replaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return langgraphs(*args, **options)


def plain(chunk: Any) -> Any:
    """Return a chunk without ids: messages in words, and only the node of the metadata."""
    if isinstance(chunk, BaseMessage):
        return f"{chunk.type}:{chunk.content}"
    if isinstance(chunk, dict) and "langgraph_node" in chunk:
        return chunk["langgraph_node"]
    if isinstance(chunk, dict):
        return {key: plain(value) for key, value in chunk.items()}
    if isinstance(chunk, (list, tuple)):
        return [plain(item) for item in chunk]
    return chunk.partition(":")[0] if isinstance(chunk, str) and len(chunk) > 36 else chunk


async def heard(stream: AsyncIterator[Any]) -> list[Any]:
    """Return all chunks of a stream, without ids."""
    return [plain(chunk) async for chunk in stream]


def worked(desk: Desk, make: Any, **options: Any) -> Any:
    """A graph with an agent that makes one call and ends."""
    model = ScriptedModel([calls(tool_call("work", "1", query="x")), "all done"])
    agent = make(model, desk.tools(), name="worker", **options)
    return chain(("before", desk.node("before")), ("worker", agent), ("after", desk.node("after")))


@on_asyncio
@pytest.mark.parametrize("subgraphs", [False, True], ids=["of the graph", "of all"])
@pytest.mark.parametrize("mode", ["values", "updates", "messages", "custom"])
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_graph_tells_of_a_nested_agent_what_it_tells_of_langgraphs(
    mode: str, subgraphs: bool, version: str
) -> None:
    """The chunks are equal one by one, including their namespaces."""
    with anyio.fail_after(WAIT):
        expected, actual = [
            await heard(worked(Desk(), make, version=version).astream(QUESTION, stream_mode=mode, subgraphs=subgraphs))
            for make in (langgraphs_agent, create_react_agent)
        ]

    assert expected or (mode, subgraphs) == ("custom", False)
    assert actual == expected


@on_asyncio
async def test_messages_of_a_nested_agent_are_told_once_though_it_stopped_in_between() -> None:
    """An interrupted run has no result, so its messages are streamed when the agent has ended."""
    desk = Desk()
    asked = calls(tool_call("work", "1", query="x"), tool_call("ask", "2", query="a"))
    agent = create_react_agent(ScriptedModel([asked, "done"]), desk.tools(), name="worker")
    graph = chain(("worker", agent), saver=InMemorySaver())
    with anyio.fail_after(WAIT):
        before = await heard(graph.astream(QUESTION, AT, stream_mode="messages"))
        after = await heard(graph.astream(Command(resume="yes"), AT, stream_mode="messages"))

    assert before == []
    assert [message for message, _ in after] == ["ai:", "tool:did x", "tool:a: yes", "ai:done"]


@on_asyncio
async def test_an_agent_stops_under_astream_events_and_goes_on_without() -> None:
    """The graph streams the agent in one run and invokes it in the next; the conversation is the same."""
    desk = Desk()
    asked = calls(tool_call("work", "1", query="x"), tool_call("ask", "2", query="a"))
    model = ScriptedModel([asked, "done"])
    graph = chain(("worker", create_react_agent(model, desk.tools(), name="worker")), saver=InMemorySaver())
    with anyio.fail_after(WAIT):
        events = [event async for event in graph.astream_events(QUESTION, AT, version="v2")]
        inside = (await graph.aget_state(AT, subgraphs=True)).tasks[0].state
        assert [question.value for question in inside.interrupts] == ["a"]
        result = await graph.ainvoke(Command(resume="yes"), AT)

    assert {"on_chat_model_stream", "on_tool_start", "on_tool_end"} <= {event["event"] for event in events}
    assert shape(result["messages"])[2:] == ["tool:did x", "tool:a: yes", "ai:done"]
    assert desk.log == ["work x", "ask a", "ask a", "answered a"]


@on_asyncio
@pytest.mark.parametrize(("mode", "subgraphs"), [
    ("values", False), ("values", True), ("updates", False), ("updates", True), ("messages", False),
])  # fmt: skip
async def test_a_hand_off_is_told_as_langgraph_tells_it(mode: str, subgraphs: bool) -> None:
    """The call that hands over writes nothing to its own agent."""

    def swarm(make: Any) -> Any:
        ada = make(ScriptedModel([calls(tool_call("to_bob", "1"))]), [hand_off("bob")], name="ada")
        bob = make(ScriptedModel(["bob here"]), [], name="bob")
        return chain(("ada", ada), ("bob", bob))

    with anyio.fail_after(WAIT):
        expected, actual = [
            await heard(swarm(make).astream(QUESTION, stream_mode=mode, subgraphs=subgraphs))
            for make in (langgraphs_agent, create_react_agent)
        ]

    assert actual == expected


def delegating(make: Any, desk: Desk) -> Any:
    """An agent with a tool that runs another agent."""
    inner = make(ScriptedModel([calls(tool_call("work", "2", query="x")), "inner done"]), desk.tools())
    asked = calls(tool_call("inner", "1", query="q"))
    return make(ScriptedModel([asked, "done"]), [delegate(inner, "inner")])


@pytest.mark.parametrize("mode", ["updates", "custom"])
async def test_an_agent_tells_of_an_agent_in_its_call_if_asked_to(mode: str) -> None:
    """With `subgraphs=True` the inner agent's chunks have the call's namespace; otherwise they are not streamed."""
    with anyio.fail_after(WAIT):
        alone = await heard(delegating(create_react_agent, Desk()).astream(QUESTION, stream_mode=mode))
        everything = await heard(
            delegating(create_react_agent, Desk()).astream(QUESTION, stream_mode=mode, subgraphs=True)
        )

    inner = [payload for namespace, payload in everything if namespace]
    assert {tuple(namespace) for namespace, _ in everything if namespace} == {("tools",)}
    assert [payload for namespace, payload in everything if not namespace] == alone
    if mode == "updates":
        assert [list(payload) for payload in inner] == [["agent"], ["tools"], ["agent"]]
        assert [list(payload) for payload in alone] == [["agent"], ["tools"], ["agent"]]
    else:
        assert (alone, inner) == ([], ["at work on x"])


@on_asyncio
@pytest.mark.parametrize("subgraphs", [False, True], ids=["of the agent", "of all"])
@pytest.mark.parametrize("mode", ["values", "updates", "messages", "custom"])
async def test_an_agent_within_a_call_is_told_of_as_by_langgraph(mode: str, subgraphs: bool) -> None:
    """The chunks equal those of two agents of LangGraph."""
    with anyio.fail_after(WAIT):
        expected, actual = [
            await heard(delegating(make, Desk()).astream(QUESTION, stream_mode=mode, subgraphs=subgraphs))
            for make in (langgraphs_agent, create_react_agent)
        ]

    assert actual == expected


@on_asyncio
async def test_an_agent_tells_of_a_graph_of_langgraph_in_its_call() -> None:
    """The graph's nodes are streamed under the namespace of the call."""
    desk = Desk()

    async def say(state: Any) -> Any:
        return {"messages": [("ai", "graph done")]}

    agent = create_react_agent(
        ScriptedModel([calls(tool_call("graph", "1", query="q")), "done"]), [delegate(chain(("say", say)), "graph")]
    )
    with anyio.fail_after(WAIT):
        chunks = await heard(agent.astream(QUESTION, stream_mode="updates", subgraphs=True))

    assert desk.log == []
    assert [list(payload) for namespace, payload in chunks if namespace] == [["say"]]


@on_asyncio
async def test_a_node_streams_an_agent_by_hand_and_the_graph_hears_of_it_too() -> None:
    """Both readers get the agent's chunks: the function in the node, and the reader of the whole graph."""
    model = ScriptedModel([calls(tool_call("ask", "1", query="a")), "done"])
    agent = create_react_agent(model, Desk().tools())
    by_hand: list[Any] = []
    note = by_hand.append

    async def node(state: Any) -> Any:
        async for chunk in agent.astream(state, stream_mode="updates"):
            note(plain(chunk))

    graph = chain(("node", node), saver=InMemorySaver())
    with anyio.fail_after(WAIT):
        first = await heard(graph.astream(QUESTION, AT, stream_mode="updates", subgraphs=True))
        second = await heard(graph.astream(Command(resume="yes"), AT, stream_mode="updates", subgraphs=True))

    from_inside = [payload for namespace, payload in [*first, *second] if namespace]
    assert [list(payload) for payload in from_inside] == [["agent"], ["__interrupt__"], ["tools"], ["agent"]]
    assert [list(payload) for payload in by_hand] == [["agent"], ["__interrupt__"], ["tools"], ["agent"]]
