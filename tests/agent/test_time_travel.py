"""Promise 10: every past place of a thread can be shown again, and a run can continue from it."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, StateSnapshot, interrupt

from callboard import create_react_agent, tool_call
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import make

from ._graphs import Desk
from ._savers import AT, complaint, saver_of, say, shape

pytestmark = pytest.mark.real_clock


def at(snapshot: StateSnapshot | str) -> Any:
    checkpoint_id = snapshot if isinstance(snapshot, str) else place_id(snapshot)
    return {"configurable": {"thread_id": "1", "checkpoint_id": checkpoint_id}}


def place_id(snapshot: StateSnapshot) -> str:
    return str(snapshot.config["configurable"]["checkpoint_id"])


def messages_of(snapshot: StateSnapshot) -> list[str]:
    return shape(snapshot.values.get("messages", []))


async def history(agent: Any, **options: Any) -> list[StateSnapshot]:
    return [snapshot async for snapshot in agent.aget_state_history(AT, **options)]


def comparable(snapshot: StateSnapshot) -> Any:
    """Return the parts of a place that must be the same in each reading."""
    return (
        messages_of(snapshot),
        snapshot.next,
        snapshot.metadata,
        [task.name for task in snapshot.tasks],
        snapshot.created_at,
    )


def echo(recorder: Recorder, saver: Any, **options: Any) -> Any:
    """An agent that calls `work` with each message and repeats the result."""

    def reply(messages: list[Any]) -> Any:
        last = messages[-1]
        return calls(("work", {"query": last.content})) if last.type == "human" else f"said {last.content}"

    model = ScriptedModel([reply], loop=True)
    return create_react_agent(model, [recorder.tool("work")], checkpointer=saver, **options)


TURN_A = ["human:a", "ai:", "tool:a", "ai:said a"]
TURN_B = ["human:b", "ai:", "tool:b", "ai:said b"]
TURN_C = ["human:c", "ai:", "tool:c", "ai:said c"]


async def test_the_history_has_every_place_and_each_can_be_seen_again(saver: Any) -> None:
    agent = echo(Recorder(), saver)
    await agent.ainvoke(say("a"), AT)
    await agent.ainvoke(say("b"), AT)
    snapshots = await history(agent)
    reread_snapshots = [await agent.aget_state(snapshot.config) for snapshot in snapshots]

    lengths = [len(snapshot.values.get("messages", [])) for snapshot in snapshots]
    assert lengths == sorted(lengths, reverse=True)
    assert {0, 1, 2, 3, 4, 5, 6, 7, 8} == set(lengths)
    ids = [place_id(snapshot) for snapshot in snapshots]
    assert ids == sorted(set(ids), reverse=True)
    assert [comparable(snapshot) for snapshot in reread_snapshots] == [comparable(snapshot) for snapshot in snapshots]


async def test_the_history_is_filtered_and_cut(saver: Any) -> None:
    agent = echo(Recorder(), saver)
    await agent.ainvoke(say("a"), AT)
    await agent.ainvoke(say("b"), AT)
    places = [place_id(place) for place in await history(agent)]
    inputs = await history(agent, filter={"source": "input"})
    step = await history(agent, filter={"source": "loop", "step": 2})
    none = await history(agent, filter={"source": "nothing"})
    for number, place in enumerate(places):
        assert [place_id(snapshot) for snapshot in await history(agent, before=at(place))] == places[number + 1 :]
        assert [place_id(snapshot) for snapshot in await history(agent, limit=number)] == places[:number]
    two_snapshots = await history(agent, before=at(places[2]), limit=2)
    assert {place.metadata["source"] for place in inputs} == {"input"}
    assert {place.next for place in inputs} == {("__start__",)}
    assert [place.metadata["step"] for place in step] == [2]
    assert none == []
    assert [place_id(place) for place in two_snapshots] == places[3:5]


async def test_a_place_of_the_past_does_not_show_a_later_question_of_a_call_with_the_same_id(saver: Any) -> None:
    """Models reuse the ids of calls, and a client would show a person the question beside a call that never asked."""

    async def work(question: bool) -> str:
        """Work."""
        return str(interrupt("Which one?")) if question else "done"

    def reply(messages: list[Any]) -> Any:
        last = messages[-1]
        call = tool_call("work", "same", question=last.text == "ask")
        return [call] if last.type == "human" else "said"

    agent = create_react_agent(ScriptedModel([reply], loop=True), [make(work)], checkpointer=saver)
    await agent.ainvoke(say("go"), AT, interrupt_before=["tools"])
    await agent.ainvoke(None, AT)
    before = {place_id(snapshot): snapshot.interrupts for snapshot in await history(agent)}
    await agent.ainvoke(say("ask"), AT)
    after = {place_id(snapshot): snapshot.interrupts for snapshot in await history(agent)}

    assert [question.value for questions in after.values() for question in questions] == ["Which one?"]
    assert {place: after[place] for place in before} == before


@pytest.mark.parametrize("number", range(10))
async def test_the_thread_goes_on_from_any_place_and_what_was_there_stays(saver: Any, number: int) -> None:
    recorder = Recorder()
    agent = echo(recorder, saver)
    await agent.ainvoke(say("a"), AT)
    await agent.ainvoke(say("b"), AT)
    before = await history(agent)
    if number >= len(before):
        pytest.skip("there is no such place")
    start = before[number]
    result = await agent.ainvoke(None, start.config)
    after = await history(agent)
    reread = {place_id(snapshot): comparable(await agent.aget_state(snapshot.config)) for snapshot in before}

    turns = [*TURN_A, *TURN_B]
    expected = messages_of(start) if not start.next else turns[:4] if len(messages_of(start)) < 4 else turns
    assert shape(result) == expected
    assert reread == {place_id(snapshot): comparable(snapshot) for snapshot in before}
    assert [place_id(snapshot) for snapshot in after if snapshot in before] == [
        place_id(snapshot) for snapshot in before if snapshot in after
    ]
    assert {place_id(snapshot) for snapshot in before} <= {place_id(snapshot) for snapshot in after}
    if start.next:
        assert shape(result) == messages_of(after[0])


@pytest.mark.parametrize("number", range(10))
async def test_a_new_message_at_any_place_is_a_fork_with_a_valid_history(saver: Any, number: int) -> None:
    agent = echo(Recorder(), saver)
    await agent.ainvoke(say("a"), AT)
    await agent.ainvoke(say("b"), AT)
    before = await history(agent)
    if number >= len(before):
        pytest.skip("there is no such place")
    result = await agent.ainvoke(say("c"), before[number].config)
    present = await agent.aget_state(AT)

    texts = shape(result)
    assert texts[-4:] == TURN_C
    assert texts[: len(messages_of(before[number]))] == messages_of(before[number])
    assert complaint(result["messages"]) is None
    assert messages_of(present) == texts


async def test_time_travel_asks_again_and_forgets_the_answers(saver: Any) -> None:
    desk = Desk()
    model = ScriptedModel([calls(("ask", {"query": "a"}), ("work", {"query": "x"})), "done", "done again"])
    agent = create_react_agent(model, desk.tools(), checkpointer=saver)
    first = await agent.ainvoke(say("go"), AT)
    await agent.ainvoke(Command(resume="one"), AT)
    snapshot = next(
        snapshot for snapshot in reversed(await history(agent)) if snapshot.next and "tools" in snapshot.next
    )
    second = await agent.ainvoke(None, snapshot.config)
    assert second["__interrupt__"][0].id != first["__interrupt__"][0].id
    result = await agent.ainvoke(Command(resume="two"), AT)
    snapshots = await history(agent)
    assert shape(result) == ["human:go", "ai:", "tool:a: two", "tool:did x", "ai:done again"]
    assert (desk.log.count("ask a"), desk.log.count("work x")) == (4, 2)
    assert ["human:go", "ai:", "tool:a: one", "tool:did x", "ai:done"] in [
        messages_of(snapshot) for snapshot in snapshots
    ]


ACTIONS = st.one_of(
    st.tuples(st.just("say"), st.sampled_from("abc")),
    st.tuples(st.just("remove"), st.integers(0, 20)),
    st.tuples(st.just("edit"), st.integers(0, 20)),
    st.tuples(st.just("clear"), st.just(0)),
    st.tuples(st.just("add"), st.integers(0, 3)),
    st.tuples(st.just("fork"), st.integers(0, 40)),
    st.tuples(st.just("fork and say"), st.integers(0, 40)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=st.lists(ACTIONS, min_size=2, max_size=9), kind=st.sampled_from(["memory", "sqlite"]))
@example(actions=[("say", "a"), ("say", "a"), ("remove", 0), ("fork and say", 0), ("fork and say", 16)], kind="memory")
@pytest.mark.exhaustive
def test_every_place_has_exactly_what_it_had_when_it_was_the_present(actions: list[tuple[str, Any]], kind: str) -> None:
    asyncio.run(_Walk(kind).go(actions))


class _Walk:
    """One thread, and copies of all its places."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.copies: dict[str, Any] = {}

    async def go(self, actions: list[tuple[str, Any]]) -> None:
        async with saver_of(self._kind, ":memory:") as saver:
            self.agent = echo(Recorder(), saver)
            await self.agent.ainvoke(say("start"), AT)
            await self._copy_new_places()
            for action, detail in actions:
                await self._do(action, detail)
                await self._copy_new_places()
            for checkpoint_id, copy in self.copies.items():
                assert self._copy(await self.agent.aget_state(at(checkpoint_id))) == copy
            assert {place_id(snapshot) for snapshot in await history(self.agent)} == self.copies.keys()

    async def _do(self, action: str, detail: Any) -> None:
        config = AT
        messages = (await self.agent.aget_state(AT)).values.get("messages", [])
        if action.startswith("fork"):
            config = at(sorted(self.copies)[detail % len(self.copies)])
        if action in ("say", "fork and say"):
            await self.agent.ainvoke(say(str(detail)), config)
        elif action == "clear":
            await self.agent.aupdate_state(AT, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]})
        elif action == "fork":
            await self.agent.aupdate_state(config, {"messages": [HumanMessage("forked")]})
        elif action == "add":
            added = [HumanMessage(f"{number}") for number in range(detail)]
            await self.agent.aupdate_state(AT, {"messages": added})
        elif messages:
            chosen = messages[detail % len(messages)]
            change = RemoveMessage(id=chosen.id)
            if action == "edit":
                change = chosen.model_copy(update={"content": f"{chosen.content}!"})
            await self.agent.aupdate_state(AT, {"messages": [change]})

    async def _copy_new_places(self) -> None:
        for snapshot in await history(self.agent):
            self.copies.setdefault(place_id(snapshot), self._copy(snapshot))

    def _copy(self, snapshot: StateSnapshot) -> Any:
        messages = [message.model_dump() for message in snapshot.values.get("messages", [])]
        return (
            messages,
            snapshot.next,
            snapshot.metadata,
            snapshot.parent_config and place_id_of(snapshot.parent_config),
        )


def place_id_of(config: Any) -> str:
    return str(config["configurable"]["checkpoint_id"])
