"""Promises 2, 10 and 12: callboard continues LangGraph's threads anywhere, and LangGraph callboard's between turns."""

import operator
import warnings
from collections.abc import AsyncIterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import langchain.agents
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.errors import UnknownInterruptError
from langgraph.prebuilt import create_react_agent as langgraphs
from langgraph.types import Command, Send, interrupt
from typing_extensions import NotRequired

import callboard
from callboard import AgentState, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls

from ._graphs import Desk, busy, ids
from ._savers import AT, MORE, QUESTION, complaint, saver_of, say, shape

pytestmark = [pytest.mark.real_clock, pytest.mark.backends("asyncio")]
"""LangGraph's own agents run on asyncio only."""

OURS = ("ours", "ours v1")
BY_CALL = ("react v2", "langchain")
"""Kinds of LangGraph's agents in which each call is a task of its own."""
THEIRS = (*BY_CALL, "react v1")
PAIRS = pytest.mark.parametrize(
    "pair", [pair for theirs in THEIRS for pair in ((theirs, "ours"), ("ours", theirs))], ids=" > ".join
)
"""Each agent of LangGraph's before, and after, one of ours."""
FROM_THEIRS = pytest.mark.parametrize("theirs", THEIRS)


@pytest.fixture(params=["memory", "aiosqlite"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """A checkpointer that all agents share."""
    async with saver_of(request.param, tmp_path / "db") as opened_saver:
        yield opened_saver


def agent(kind: str, model: Any, tools: list[Any], **options: Any) -> Any:
    """Return an agent of one of the six kinds."""
    if kind == "create_agent":
        return callboard.create_agent(model, tools, **options)
    if kind == "langchain":
        return create_agent(model, tools, **options)
    version = "v1" if kind.endswith("v1") else "v2"
    if kind in OURS:
        return create_react_agent(model, tools, version=version, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return langgraphs(model, tools, version=version, **options)


async def read_messages(reader: Any) -> list[BaseMessage]:
    """Return the conversation as an agent reads it."""
    return list((await reader.aget_state(AT)).values.get("messages", ()))


async def assert_all_read_the_same(agents: list[Any]) -> list[BaseMessage]:
    """Assert that every agent reads the same messages and ids, and nothing is left to do; return the messages."""
    states = [await reader.aget_state(AT) for reader in agents]
    messages: list[BaseMessage] = states[0].values["messages"]
    for state in states:
        assert state.values["messages"] == messages
        assert (state.next, state.interrupts) == ((), ())
    assert complaint(messages) is None
    return messages


@pytest.mark.parametrize("theirs", THEIRS)
@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("first", ["theirs", "ours"])
async def test_a_thread_goes_back_and_forth_turn_by_turn(saver: Any, theirs: str, ours: str, first: str) -> None:
    desk = Desk()
    turns = [(calls(tool_call("work", f"{n}", query=f"{n}")), f"done {n}") for n in range(5)]
    model = ScriptedModel([line for turn in turns for line in turn])
    agents = [agent(kind, model, desk.tools(), checkpointer=saver) for kind in (theirs, ours)]
    order = agents if first == "theirs" else agents[::-1]
    before: list[BaseMessage] = []
    for turn in range(5):
        await order[turn % 2].ainvoke(say(f"go {turn}"), AT)
        after = await assert_all_read_the_same(agents)
        assert after[: len(before)] == before
        assert len(after) == len(before) + 4
        before = after
    assert desk.log == [f"work {n}" for n in range(5)]
    for request, following in pairwise(model.requests):
        assert following[: len(request)] == request


HOPS = pytest.mark.parametrize("hops", [
    ("react v2", "ours", "ours v1"),
    ("langchain", "ours v1", "ours"),
    ("react v2", "react v2", "ours"),
    ("ours", "ours v1", "ours"),
], ids=" > ".join)  # fmt: skip


@HOPS
async def test_questions_of_one_batch_are_answered_under_three_agents(saver: Any, hops: tuple[str, ...]) -> None:
    desk, model = Desk(), ScriptedModel([busy(), "done", "more"])
    agents = [agent(kind, model, desk.tools(), checkpointer=saver) for kind in hops]
    await agents[0].ainvoke(QUESTION, AT)
    open_ids = {question.value: question.id for question in (await agents[1].aget_state(AT)).interrupts}
    assert open_ids == {question.value: question.id for question in (await agents[0].aget_state(AT)).interrupts}
    assert sorted(open_ids) == ["a", "b"]
    result = await agents[1].ainvoke(Command(resume={open_ids["b"]: "B"}), AT)
    assert ids(result) == {"a": open_ids["a"]}
    assert [question.id for question in (await agents[2].aget_state(AT)).interrupts] == [open_ids["a"]]
    await agents[2].ainvoke(Command(resume="A"), AT)
    messages = await assert_all_read_the_same(agents)
    assert shape(messages)[2:] == ["tool:did x", "tool:a: A", "tool:b: B", "ai:done"]
    await agents[0].ainvoke(MORE, AT)
    assert shape(await assert_all_read_the_same(agents))[-2:] == ["human:more", "ai:more"]
    assert desk.log.count("work x") == 1
    assert [line for line in desk.log if line.startswith("answered")] == ["answered b", "answered a"]
    assert len(model.requests) == 3


@HOPS
async def test_the_second_question_of_a_call_gets_the_second_answer(saver: Any, hops: tuple[str, ...]) -> None:
    """The first answer must be passed on, or the next agent would use the second answer in its place."""
    answers: list[str] = []

    @tool
    async def twice() -> str:
        """Ask two questions."""
        answers.append(f"{interrupt('first')} {interrupt('second')}")
        return answers[-1]

    desk = Desk()
    model = ScriptedModel([calls(tool_call("twice", "1"), tool_call("work", "2", query="x")), "done"])
    agents = [agent(kind, model, desk.tools(twice), checkpointer=saver) for kind in hops]
    await agents[0].ainvoke(QUESTION, AT)
    assert list(ids(await agents[1].ainvoke(Command(resume="one"), AT))) == ["second"]
    await agents[2].ainvoke(Command(resume="two"), AT)
    messages = await assert_all_read_the_same(agents)
    assert shape(messages)[2:] == ["tool:one two", "tool:did x", "ai:done"]
    assert answers == ["one two"]


@pytest.mark.parametrize("ours", OURS)
async def test_the_question_of_a_lone_call_under_v1_is_answered_under_ours(saver: Any, ours: str) -> None:
    desk, model = Desk(), ScriptedModel([calls(tool_call("ask", "1", query="a")), "done"])
    agents = [agent(kind, model, desk.tools(), checkpointer=saver) for kind in ("react v1", ours)]
    open_ids = ids(await agents[0].ainvoke(QUESTION, AT))
    assert [question.id for question in (await agents[1].aget_state(AT)).interrupts] == [open_ids["a"]]
    await agents[1].ainvoke(Command(resume="yes"), AT)
    messages = await assert_all_read_the_same(agents)
    assert shape(messages)[2:] == ["tool:a: yes", "ai:done"]
    assert desk.log == ["ask a", "ask a", "answered a"]


async def test_a_batch_that_v1_stopped_in_is_begun_anew(saver: Any) -> None:
    """LangGraph's v1 does not store which call asked or finished, so no input is taken for an answer."""
    desk, model = Desk(), ScriptedModel([busy(), "done"])
    their_agent, our_agent = (agent(kind, model, desk.tools(), checkpointer=saver) for kind in ("react v1", "ours"))
    await their_agent.ainvoke(QUESTION, AT)
    with pytest.raises(UnknownInterruptError, match="No question is open"):
        await our_agent.ainvoke(Command(resume="yes"), AT)
    open_ids = ids(await our_agent.ainvoke(None, AT))
    await our_agent.ainvoke(Command(resume={open_ids["a"]: "A", open_ids["b"]: "B"}), AT)
    messages = await assert_all_read_the_same([their_agent, our_agent])
    assert shape(messages)[2:] == ["tool:did x", "tool:a: A", "tool:b: B", "ai:done"]
    assert desk.log.count("work x") == 2
    assert len(model.requests) == 2


@FROM_THEIRS
async def test_a_call_that_failed_runs_again_under_ours(saver: Any, theirs: str) -> None:
    """A finished neighbour does not run again, if the earlier agent stored results by call."""
    desk, errors = Desk(), [ValueError("no")]

    @tool
    async def fragile() -> str:
        """Fail once."""
        desk.log.append("fragile")
        if errors:
            raise errors.pop()
        return "whole"

    model = ScriptedModel([calls(tool_call("work", "1", query="x"), tool_call("fragile", "2")), "done"])
    first, second = (agent(kind, model, desk.tools(fragile), checkpointer=saver) for kind in (theirs, "ours"))
    with pytest.raises(ValueError, match="no"):
        await first.ainvoke(QUESTION, AT)
    await second.ainvoke(None, AT)
    messages = await assert_all_read_the_same([first, second])
    assert shape(messages)[2:] == ["tool:did x", "tool:whole", "ai:done"]
    assert desk.log.count("fragile") == 2
    assert desk.log.count("work x") == (2 if theirs == "react v1" else 1)
    assert len(model.requests) == 2


class Orders(AgentState):
    orders: NotRequired[Annotated[list[str], operator.add]]


class OrdersOfLangchain(langchain.agents.AgentState[Any]):
    orders: NotRequired[Annotated[list[str], operator.add]]


@pytest.mark.parametrize(
    ("theirs", "ours", "waits"),
    [
        ("react v2", "ours", True),
        ("langchain", "create_agent", True),
        ("react v2", "ours v1", False),
        ("react v1", "ours", False),
    ],
)
async def test_a_command_of_a_call_under_theirs_changes_the_state_under_ours(
    saver: Any, theirs: str, ours: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their process ends while another call waits, or when all calls have ended and the step has not."""
    desk, schema = Desk(), OrdersOfLangchain if theirs == "langchain" else Orders

    @tool
    def order(id: Annotated[str, InjectedToolCallId]) -> list[Command[Any]]:
        """Order, with two messages, changes of the state and a further call."""
        desk.log.append(f"order {id}")
        done: list[Any] = [ToolMessage("ordered", tool_call_id=id), HumanMessage(f"noted {id}")]
        further = [Send("tools", [tool_call("work", "9", query="x")])] if id == "1" else ()
        return [Command(update={"orders": [id], "messages": done}, goto=further), Command(update={"orders": ["tax"]})]

    requested = [tool_call("order", "1"), tool_call("order", "2"), *([tool_call("ask", "3", query="a")] * waits)]
    model = ScriptedModel([calls(*requested), *["done"] * 4])
    first, second = (
        agent(kind, model, desk.tools(order), checkpointer=saver, state_schema=schema) for kind in (theirs, ours)
    )
    store = saver.aput

    async def store_until_calls(config: Any, checkpoint: Any, *args: Any) -> Any:
        if "orders" in checkpoint["channel_values"]:
            raise OSError("the process ends")
        return await store(config, checkpoint, *args)

    with monkeypatch.context() as dying, nullcontext() if waits else pytest.raises(OSError, match="ends"):
        dying.setattr(saver, "aput", store_until_calls)
        await first.ainvoke(QUESTION, AT, durability="sync")
    await second.ainvoke(Command(resume="yes") if waits else None, AT)
    state = (await second.aget_state(AT)).values

    assert state["orders"] == ["1", "tax", "2", "tax"]
    assert [desk.log.count(line) for line in ("order 1", "order 2", "work x")] == [1, 1, 1]
    expected = ["tool:ordered", "human:noted 1", "tool:ordered", "human:noted 2", *(["tool:a: yes"] * waits)]
    assert sorted(shape(state)[2 : 2 + len(expected)]) == sorted(expected)


@pytest.mark.parametrize("second", ["react v2", "ours"])
async def test_a_finished_call_that_goes_to_a_node_by_name_goes_there_under_ours(saver: Any, second: str) -> None:
    desk, hook_runs = Desk(), list[str]()

    @tool
    def leave_out(id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Go to the model without the hook."""
        return Command(update={"messages": [ToolMessage("ok", tool_call_id=id)]}, goto="agent")

    def hook(state: Any) -> Any:
        hook_runs.append("hook")
        return {}

    requested = calls(tool_call("leave_out", "1"), tool_call("ask", "2", query="a"))
    model = ScriptedModel([requested, "by name", "by the edge"])
    first, later = (
        agent(kind, model, desk.tools(leave_out), checkpointer=saver, pre_model_hook=hook)
        for kind in ("react v2", second)
    )
    await first.ainvoke(QUESTION, AT)
    await later.ainvoke(Command(resume="yes"), AT)
    assert (len(hook_runs), len(model.requests)) == (2, 3)


@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
@PAIRS
async def test_a_stop_at_the_tools_is_passed_by_the_other(saver: Any, pair: tuple[str, str], when: str) -> None:
    desk = Desk()
    model = ScriptedModel([calls(tool_call("work", "1", query="x"), tool_call("work", "2", query="y")), "done"])
    first = agent(pair[0], model, desk.tools(), checkpointer=saver, **{when: ["tools"]})
    second = agent(pair[1], model, desk.tools(), checkpointer=saver)
    await first.ainvoke(QUESTION, AT)
    assert len(desk.log) == (0 if when == "interrupt_before" else 2)
    assert set((await second.aget_state(AT)).next) <= {"tools", "agent", "model"}
    await second.ainvoke(None, AT)
    messages = await assert_all_read_the_same([first, second])
    assert shape(messages)[2:] == ["tool:did x", "tool:did y", "ai:done"]
    assert sorted(desk.log) == ["work x", "work y"]
    assert len(model.requests) == 2


@pytest.mark.parametrize("after_tools", [False, True], ids=["at once", "after tools"])
@PAIRS
async def test_a_model_that_failed_is_asked_again_by_the_other(
    saver: Any, pair: tuple[str, str], after_tools: bool
) -> None:
    """The model node is called differently in `langgraph.prebuilt` and in `langchain.agents`."""
    desk = Desk()
    before = [calls(tool_call("work", "1", query="x"))] if after_tools else []
    model = ScriptedModel([*before, ConnectionError("gone"), "done"])
    first, second = (agent(kind, model, desk.tools(), checkpointer=saver) for kind in pair)
    with pytest.raises(ConnectionError):
        await first.ainvoke(QUESTION, AT)
    await second.ainvoke(None, AT)
    messages = await assert_all_read_the_same([first, second])
    assert shape(messages)[-1] == "ai:done"
    assert len(desk.log) == len(before)


async def test_a_node_that_ours_does_not_have_is_gone_round(saver: Any) -> None:
    model = ScriptedModel(["done"])
    their_agent = agent("react v2", model, [], checkpointer=saver, pre_model_hook=lambda _: {}, interrupt_before="*")
    our_agent = agent("ours", model, [], checkpointer=saver)
    await their_agent.ainvoke(QUESTION, AT)
    assert (await their_agent.aget_state(AT)).next == ("pre_model_hook",)
    result = await our_agent.ainvoke(None, AT)
    assert shape(result) == ["human:go", "ai:done"]


HOOKED = pytest.mark.parametrize("hops", [
    ("langchain", "create_agent", "create_agent"),
    ("langchain", "langchain", "create_agent"),
], ids=" > ".join)  # fmt: skip


@HOOKED
async def test_an_approval_of_a_whole_reply_is_given_under_the_other_agent(saver: Any, hops: tuple[str, ...]) -> None:
    """LangChain's approval asks in a hook: threads that wait for a person have to survive the change of an import."""
    desk = Desk()
    model = ScriptedModel([calls(tool_call("work", "1", query="x")), calls(tool_call("work", "2", query="y")), "done"])
    human = HumanInTheLoopMiddleware({"work": True})
    agents = [agent(kind, model, desk.tools(), middleware=[human], checkpointer=saver) for kind in hops]
    agent_input: Any = QUESTION
    for number, current_agent in enumerate(agents[:2]):
        [open_question] = (await current_agent.ainvoke(agent_input, AT))["__interrupt__"]
        for reader in agents[number:]:
            assert [question.id for question in (await reader.aget_state(AT)).interrupts] == [open_question.id]
        agent_input = Command(resume={open_question.id: {"decisions": [{"type": "approve"}]}})
    await agents[2].ainvoke(agent_input, AT)
    messages = await assert_all_read_the_same(agents)
    assert shape(messages)[2:] == ["tool:did x", "ai:", "tool:did y", "ai:done"]
    assert desk.log == ["work x", "work y"]


@HOOKED
async def test_the_second_question_of_a_hook_gets_the_second_answer(saver: Any, hops: tuple[str, ...]) -> None:
    answers: list[str] = []

    class Asks(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> None:
            answers.append(f"{interrupt('first')} {interrupt('second')}")

    agents = [agent(kind, ScriptedModel(["done"]), [], middleware=[Asks()], checkpointer=saver) for kind in hops]
    await agents[0].ainvoke(QUESTION, AT)
    assert list(ids(await agents[1].ainvoke(Command(resume="one"), AT))) == ["second"]
    await agents[2].ainvoke(Command(resume="two"), AT)
    messages = await assert_all_read_the_same(agents)
    assert shape(messages) == ["human:go", "ai:done"]
    assert answers == ["one two"]


@pytest.mark.parametrize("theirs", BY_CALL)
async def test_a_new_message_under_ours_keeps_what_langgraph_had_finished(saver: Any, theirs: str) -> None:
    """Promise 2: the results that LangGraph stored in the middle of a batch are kept."""
    desk, model = Desk(), ScriptedModel([busy(), "never mind"])
    their_agent, our_agent = (agent(kind, model, desk.tools(), checkpointer=saver) for kind in (theirs, "ours"))
    await their_agent.ainvoke(QUESTION, AT)
    await our_agent.ainvoke(MORE, AT)
    messages = await assert_all_read_the_same([their_agent, our_agent])
    assert shape(messages)[2] == "tool:did x"
    assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "tool", "human", "ai"]
    assert desk.log.count("work x") == 1


async def test_state_that_the_other_side_does_not_know_is_kept(saver: Any) -> None:
    class Noting(AgentState):
        notes: str

    model = ScriptedModel(["one", "two", "three"])
    their_agent = agent("react v2", model, [], checkpointer=saver, state_schema=Noting)
    our_agent = agent("ours", model, [], checkpointer=saver)
    await their_agent.ainvoke({**QUESTION, "notes": "remember"}, AT)
    await our_agent.ainvoke(MORE, AT)
    await our_agent.ainvoke(MORE, AT)
    state = await their_agent.aget_state(AT)
    assert state.values["notes"] == "remember"
    assert len(state.values["messages"]) == 6


@pytest.mark.parametrize("theirs", THEIRS)
async def test_the_last_place_of_a_thread_is_whole_and_older_ones_are_ours_to_read(saver: Any, theirs: str) -> None:
    """callboard's older checkpoints have no messages of their own; callboard can read them, LangGraph cannot."""
    model = ScriptedModel(["one", "two", "three"], loop=True)
    our_agent, their_agent = (agent(kind, model, [], checkpointer=saver) for kind in ("ours", theirs))
    for _ in range(3):
        await our_agent.ainvoke(QUESTION, AT)
    read_by_us = [snapshot async for snapshot in our_agent.aget_state_history(AT)]
    read_by_them = [snapshot async for snapshot in their_agent.aget_state_history(AT)]
    forked = await our_agent.ainvoke(MORE, next(p for p in read_by_us if shape(p.values)[-1:] == ["ai:one"]).config)
    assert len(read_by_them[0].values["messages"]) == 6
    assert all(not snapshot.values.get("messages") for snapshot in read_by_them[1:])
    assert [len(snapshot.values["messages"]) for snapshot in read_by_us if snapshot.next == ()][:3] == [6, 4, 2]
    assert shape(forked)[:2] == ["human:go", "ai:one"]
    assert shape(forked)[2] == "human:more"


@pytest.mark.parametrize("theirs", THEIRS)
async def test_the_past_under_langgraph_is_ours_to_go_back_to(saver: Any, theirs: str) -> None:
    model = ScriptedModel(["one", "two", "other"])
    their_agent, our_agent = (agent(kind, model, [], checkpointer=saver) for kind in (theirs, "ours"))
    await their_agent.ainvoke(QUESTION, AT)
    await their_agent.ainvoke(MORE, AT)
    snapshots = [snapshot async for snapshot in our_agent.aget_state_history(AT)]
    ended = next(p for p in snapshots if p.next == () and shape(p.values)[-1] == "ai:one")
    result = await our_agent.ainvoke(MORE, ended.config)
    assert shape(result) == ["human:go", "ai:one", "human:more", "ai:other"]
