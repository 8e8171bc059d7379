"""Agents as nodes of LangGraph's graphs (promises 4, 5, 10 and 11)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send

from callboard import AgentState, create_react_agent, tool_call
from callboard.testing import Recorder, ScriptedModel, calls

from ._graphs import Desk, busy, chain, hand_off, ids
from ._savers import AT, QUESTION, complaint, saver_of, say, scripted, shape

pytestmark = [pytest.mark.real_clock, pytest.mark.backends("asyncio")]
"""LangGraph's own graphs run on asyncio only."""


@pytest.fixture(params=["memory", "aiosqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """A checkpointer for graphs on asyncio."""
    async with saver_of(request.param, tmp_path / "db") as opened_saver:
        yield opened_saver


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("anew", [False, True], ids=["same graph", "another graph"])
async def test_questions_in_a_nested_agent_are_answered_one_by_id_and_one_plainly(
    saver: Any, version: Any, anew: bool
) -> None:
    desk, model = Desk(), ScriptedModel([busy(), "done"])

    def graph() -> Any:
        agent = create_react_agent(model, desk.tools(), version=version)
        return chain(("before", desk.node("before")), ("worker", agent), ("after", desk.node("after")), saver=saver)

    outer_graph = graph()
    open_ids = ids(await outer_graph.ainvoke(QUESTION, AT))
    assert list(open_ids) == ["a", "b"]
    outer_graph = graph() if anew else outer_graph
    assert ids(await outer_graph.ainvoke(Command(resume={open_ids["b"]: "no"}), AT)) == {"a": open_ids["a"]}
    outer_graph = graph() if anew else outer_graph
    result = await outer_graph.ainvoke(Command(resume="yes"), AT)
    assert shape(result) == ["human:go", "ai:", "tool:did x", "tool:a: yes", "tool:b: no", "ai:done"]
    assert complaint(result["messages"]) is None
    assert sorted(desk.log[:4]) == ["ask a", "ask b", "before", "work x"]
    assert desk.log[4:] == ["ask b", "answered b", "ask a", "answered a", "after"]
    assert len(model.requests) == 2


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_the_state_of_a_nested_agent_is_seen_through_the_graph(saver: Any, version: Any) -> None:
    desk, model = Desk(), ScriptedModel([busy(), "done"])
    graph = chain(("worker", create_react_agent(model, desk.tools(), version=version)), saver=saver)
    await graph.ainvoke(QUESTION, AT)
    outside = await graph.aget_state(AT, subgraphs=True)
    inside = outside.tasks[0].state
    reread_state = await graph.aget_state(inside.config)
    history = [snapshot async for snapshot in graph.aget_state_history(inside.config)]
    assert outside.next == ("worker",)
    assert outside.interrupts == inside.interrupts == reread_state.interrupts
    assert set(inside.next) == {"tools"}
    assert inside.config["configurable"]["checkpoint_ns"] == f"worker:{outside.tasks[0].id}"
    assert shape(reread_state.values) == ["human:go", "ai:"]
    assert history[0].config["configurable"]["checkpoint_id"] == reread_state.config["configurable"]["checkpoint_id"]


async def test_the_checkpoints_of_a_nested_agent_are_in_the_savers_of_the_graph() -> None:
    own_saver, graph_saver = InMemorySaver(), InMemorySaver()
    agent = scripted(["one", "two"], [], checkpointer=own_saver)
    await chain(("worker", agent), saver=graph_saver).ainvoke(QUESTION, AT)
    assert not list(own_saver.list(AT))
    assert {
        checkpoint_tuple.config["configurable"]["checkpoint_ns"].partition(":")[0]
        for checkpoint_tuple in graph_saver.list(None)
    } == {
        "",
        "worker",
    }
    await agent.ainvoke(QUESTION, AT)
    assert list(own_saver.list(AT))


async def test_several_sends_to_one_agent_are_conversations_of_their_own(saver: Any) -> None:
    desk = Desk()

    def reply(messages: Any) -> Any:
        question = messages[0].content
        return f"done {question}" if messages[-1].type == "tool" else calls(tool_call("ask", "same", query=question))

    agent = scripted([reply] * 6, desk.tools())
    builder = StateGraph(MessagesState)
    builder.add_node("worker", agent)
    fan = [Send("worker", say(name)) for name in "abc"]
    builder.add_conditional_edges(START, lambda _: fan, ["worker"])
    graph = builder.compile(checkpointer=saver)
    result = await graph.ainvoke(QUESTION, AT)
    open_ids = ids(result)
    assert sorted(open_ids) == ["a", "b", "c"]
    for name in "ca":
        result = await graph.ainvoke(Command(resume={open_ids[name]: name.upper()}), AT)
        assert name not in ids(result)
    result = await graph.ainvoke(Command(resume="B"), AT)
    assert [line for line in shape(result) if line.startswith("tool")] == [
        "tool:a: A", "tool:b: B", "tool:c: C",
    ]  # fmt: skip
    assert sorted(desk.log) == sorted([f"ask {name}" for name in "aabbcc"] + [f"answered {name}" for name in "abc"])


async def test_keys_that_only_one_side_has_stay_on_that_side(saver: Any) -> None:
    class Inner(AgentState):
        notes: str
        shared: int

    class Around(MessagesState):
        shared: int
        topic: str

    states: list[Any] = []

    def hook(state: Any) -> Any:
        states.append({key: value for key, value in state.items() if key in {"notes", "shared", "topic"}})
        return {"notes": "private", "shared": state["shared"] + 1}

    desk, model = Desk(), ScriptedModel([calls(tool_call("ask", "1", query="a")), "done"])
    agent = create_react_agent(model, desk.tools(), state_schema=Inner, pre_model_hook=hook)
    graph = chain(("worker", agent), saver=saver, state=Around)
    await graph.ainvoke({**QUESTION, "shared": 5, "topic": "weather"}, AT)
    result = await graph.ainvoke(Command(resume="yes"), AT)
    assert states == [{"shared": 5}, {"shared": 6, "notes": "private"}]
    assert {key: value for key, value in result.items() if key != "messages"} == {"shared": 7, "topic": "weather"}


async def test_a_cancelled_graph_takes_the_nested_agent_along(saver: Any) -> None:
    """Promise 1: nothing is left; the next run finds the finished results."""
    recorder, model = Recorder(), ScriptedModel([calls(("work", {"query": "x"}), "hangs"), "done"])
    second_recorder = Recorder()
    stuck = chain(
        ("worker", create_react_agent(model, [recorder.tool("work"), recorder.tool("hangs", hang=True)])), saver=saver
    )
    tools = [second_recorder.tool("work"), second_recorder.tool("hangs")]
    freed = chain(("worker", create_react_agent(model, tools, on_unknown="rerun")), saver=saver)
    # LangGraph waits for its tasks if it is cancelled once, as asyncio does, but not by a scope of anyio.
    running = asyncio.create_task(stuck.ainvoke(QUESTION, AT))
    await recorder.wait_for("finished")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert recorder.running == 0
    result = await freed.ainvoke(None, AT)
    assert shape(result)[2:] == ["tool:x", "tool:hangs", "ai:done"]
    assert second_recorder.order == ["hangs"]
    assert len(model.requests) == 2


async def test_a_fork_of_the_graph_runs_the_agent_anew(saver: Any) -> None:
    desk = Desk()
    model = ScriptedModel([calls(tool_call("ask", "1", query="a")), "done"], loop=True)
    graph = chain(("worker", create_react_agent(model, desk.tools())), ("after", desk.node("after")), saver=saver)
    first = ids(await graph.ainvoke(QUESTION, AT))
    await graph.ainvoke(Command(resume="yes"), AT)
    snapshots = [snapshot async for snapshot in graph.aget_state_history(AT)]
    before = next(snapshot for snapshot in snapshots if snapshot.next == ("worker",))
    second = ids(await graph.ainvoke(None, before.config))
    result = await graph.ainvoke(Command(resume="no"), AT)
    assert first["a"] != second["a"]
    assert shape(result)[2:] == ["tool:a: no", "ai:done"]
    assert desk.log == ["ask a", "ask a", "answered a", "after"] * 2


async def test_a_change_of_the_inner_state_is_what_the_agent_goes_on_with(saver: Any) -> None:
    """With the inner config, `update_state` lets a person edit the call in place of answering."""
    desk = Desk()
    model = ScriptedModel([calls(tool_call("ask", "1", query="a")), "done"])
    graph = chain(("worker", create_react_agent(model, desk.tools())), saver=saver)
    await graph.ainvoke(QUESTION, AT)
    inner = (await graph.aget_state(AT, subgraphs=True)).tasks[0].state
    refusal = ToolMessage("refused", tool_call_id="1")
    await graph.aupdate_state(inner.config, {"messages": [refusal]}, as_node="tools")
    result = await graph.ainvoke(None, AT)
    assert shape(result)[2:] == ["tool:refused", "ai:done"]
    assert desk.log == ["ask a"]


async def test_after_a_change_of_the_inner_state_its_question_takes_the_answer(saver: Any) -> None:
    desk = Desk()
    model = ScriptedModel([calls(tool_call("ask", "1", query="a")), calls(tool_call("ask", "2", query="b")), "done"])
    graph = chain(("worker", create_react_agent(model, desk.tools())), saver=saver)
    await graph.ainvoke(QUESTION, AT)
    inner = (await graph.aget_state(AT, subgraphs=True)).tasks[0].state
    await graph.aupdate_state(inner.config, say("more"))
    assert list(ids(await graph.ainvoke(Command(resume="yes"), AT))) == ["b"]
    result = await graph.ainvoke(Command(resume="no"), AT)
    assert shape(result)[2:4] == ["human:more", "tool:a: yes"]
    assert shape(result)[-2:] == ["tool:b: no", "ai:done"]


@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
async def test_a_nested_agent_that_stops_at_a_node_stops_the_graph(saver: Any, when: str) -> None:
    desk, model = Desk(), ScriptedModel([calls(tool_call("work", "1", query="x")), "done"])
    agent = create_react_agent(model, desk.tools(), **{when: ["tools"]})
    graph = chain(("worker", agent), ("after", desk.node("after")), saver=saver)
    await graph.ainvoke(QUESTION, AT)
    state = await graph.aget_state(AT, subgraphs=True)
    assert state.next == ("worker",)
    assert state.tasks[0].state.next == (("tools",) if when == "interrupt_before" else ("agent",))
    assert "after" not in desk.log
    result = await graph.ainvoke(None, AT)
    assert shape(result)[2:] == ["tool:did x", "ai:done"]
    assert desk.log == ["work x", "after"]


@pytest.mark.parametrize("with_config", [True, False], ids=["with the config", "without"])
async def test_an_agent_called_twice_in_one_node_does_not_run_again_what_it_finished(
    saver: Any, with_config: bool
) -> None:
    desk = Desk()
    model = ScriptedModel(
        [calls(tool_call("work", "1", query="x")), "one", calls(tool_call("ask", "2", query="a")), "two"]
    )
    agent = create_react_agent(model, desk.tools())

    async def node(state: Any, config: RunnableConfig) -> Any:
        config_args = (config,) if with_config else ()
        first = await agent.ainvoke(say("first"), *config_args)
        second = await agent.ainvoke(say("second"), *config_args)
        return {"messages": [first["messages"][-1], second["messages"][-1]]}

    graph = chain(("node", node), saver=saver)
    assert list(ids(await graph.ainvoke(QUESTION, AT))) == ["a"]
    result = await graph.ainvoke(Command(resume="yes"), AT)
    assert shape(result) == ["human:go", "ai:one", "ai:two"]
    assert desk.log == ["work x", "ask a", "ask a", "answered a"]
    assert len(model.requests) == 4


async def test_an_agent_that_keeps_its_conversation_goes_on_with_it_at_the_next_visit() -> None:
    """`checkpointer=True` works as for every subgraph; an agent without a graph around it cannot use this setting."""
    model = ScriptedModel(["one", "two"])
    agent = create_react_agent(model, [], checkpointer=True)

    async def node(state: Any, config: RunnableConfig) -> Any:
        result = await agent.ainvoke({"messages": state["messages"][-1:]}, config)
        return {"messages": result["messages"][-1:]}

    graph = chain(("node", node), saver=InMemorySaver())
    await graph.ainvoke(QUESTION, AT)
    await graph.ainvoke(say("more"), AT)
    with pytest.raises(RuntimeError, match="checkpointer=True"):
        await agent.ainvoke(QUESTION, AT)
    assert shape(model.requests[-1]) == ["human:go", "ai:one", "human:more"]


@pytest.mark.parametrize("send", [False, True], ids=["goto", "send"])
async def test_two_agents_hand_over_to_each_other(saver: Any, send: bool) -> None:
    desk = Desk()
    ada = ScriptedModel([calls(tool_call("to_bob", "1")), "the end"])
    bob = ScriptedModel([calls(tool_call("ask", "2", query="a")), calls(tool_call("to_ada", "3"))])
    builder = StateGraph(MessagesState)
    builder.add_node("ada", create_react_agent(ada, [hand_off("bob", send=send)], name="ada"), destinations=("bob",))
    builder.add_node(
        "bob", create_react_agent(bob, desk.tools(hand_off("ada", send=send)), name="bob"), destinations=("ada",)
    )
    builder.add_edge(START, "ada")
    graph = builder.compile(checkpointer=saver)
    assert list(ids(await graph.ainvoke(QUESTION, AT))) == ["a"]
    result = await graph.ainvoke(Command(resume="yes"), AT)
    assert [message.name for message in result["messages"] if message.type == "ai"] == ["ada", "bob", "bob", "ada"]
    assert shape(result)[-1] == "ai:the end"
    assert complaint(result["messages"]) is None
    assert (len(ada.requests), len(bob.requests)) == (2, 2)


async def test_a_command_for_the_parent_goes_up_one_level_only() -> None:
    desk = Desk()
    agent = scripted([calls(tool_call("to_next", "1"))], [hand_off("next")])
    inner = StateGraph(MessagesState)
    inner.add_node("agent", agent, destinations=("next",))
    inner.add_node("next", desk.node("inner"))
    inner.add_edge(START, "agent")
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile())
    outer.add_node("next", desk.node("outer"))
    outer.add_edge(START, "inner")
    await outer.compile().ainvoke(QUESTION)
    assert desk.log == ["inner"]


async def test_the_second_agent_of_a_node_hands_over_too() -> None:
    """The second agent's namespace ends with a number that the surrounding graph does not know."""
    desk = Desk()
    agent = scripted(["hi", calls(tool_call("to_next", "1"))], [hand_off("next")])

    async def node(state: Any, config: RunnableConfig) -> Any:
        await agent.ainvoke(state, config)
        return await agent.ainvoke(state, config)

    builder = StateGraph(MessagesState)
    builder.add_node("node", node, destinations=("next",))
    builder.add_node("next", desk.node("next"))
    builder.add_edge(START, "node")
    result = await builder.compile().ainvoke(QUESTION)
    assert desk.log == ["next"]
    assert shape(result)[-1] == "tool:over to next"
