"""A message to a run is stored when `say` returns, and read exactly once: after kills, failures and restarts."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent as langgraph_agent
from langgraph.types import Command, interrupt

from callboard import Agent, create_agent, create_react_agent, tool_call
from callboard.exceptions import OpenCallsError, RunCancelledError, ThreadBusyError
from callboard.testing import ScriptedModel, calls

from ._forks import Forks
from ._gate import Gate, run_at_work
from ._lives import Story, stories
from ._rival_agent import agent_in, thread
from ._savers import AT, QUESTION, complaint, copy_of, saver_of, say, shape

pytestmark = [pytest.mark.real_clock, pytest.mark.hangs_after(200)]
WAIT = 30


def texts_of_persons(messages: Sequence[BaseMessage]) -> Counter[str]:
    return Counter(message.text for message in messages if isinstance(message, HumanMessage))


def check_messages(story: Story) -> None:
    conversation = texts_of_persons(story.conversation)
    assert max(conversation.values()) == 1
    assert {*story.names("said")} <= conversation.keys() <= {*story.names("sent"), "first", "second"}


@pytest.mark.parametrize(
    ("saver", "backend", "durability"),
    [
        ("sqlite", "trio", "sync"),
        ("aiosqlite", "asyncio", "async"),
        ("url", "asyncio", "sync"),
        ("url", "trio", "async"),
    ],
)
@pytest.mark.exhaustive
def test_killed_at_each_point_in_turn_a_run_loses_no_message_and_reads_none_twice(
    forks: Forks, saver: str, backend: str, durability: str, tmp_path: Path
) -> None:
    all_stories = stories(forks, "_crash_listener", tmp_path, [saver, backend, durability], 1, 1000, 1)
    assert len(all_stories) > 25
    for story in all_stories:
        check_messages(story)
    points = {name for story in all_stories for name in story.names("killed")}
    assert points >= {"before say", "after say", "before write", "in the model"}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_killed_again_and_again_a_run_loses_no_message(forks: Forks, backend: str, tmp_path: Path) -> None:
    for story in stories(forks, "_crash_listener", tmp_path, ["sqlite", backend, "async"], 7000, 3):
        check_messages(story)


@pytest.mark.parametrize("start", [False, True])
async def test_a_run_of_another_process_takes_no_messages_of_this_one(
    forks: Forks, tmp_path: Path, start: bool
) -> None:
    async with saver_of("sqlite", tmp_path / "db") as saver, agent_in(tmp_path / "log", saver) as agent:
        await agent.ainvoke(QUESTION, thread(0), interrupt_before=["tools"])
        forks.begin("agent._rival_agent", "hold", str(tmp_path), "sqlite", "asyncio", 0, 0.0)
        assert forks.answer() == "held"
        with pytest.raises(ThreadBusyError, match=f"process {forks.pid} on"):
            await agent.say("hello", thread(0), start=start)
        forks.kill()

        if start:  # nobody runs the thread any more, and its calls are open
            with pytest.raises(OpenCallsError):
                await agent.say("hello", thread(0), start=True)
        run = await agent.say("hello", thread(0), start=start, give_up=True)
        forks.tell()
        assert (run is not None) is start
        if run is not None:
            assert shape(await run.result())[-2:] == ["human:hello", "ai:done"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_an_unread_message_is_kept_with_each_durability(durability: Any) -> None:
    """The run stops for a person, and the run that goes on with the answer reads the message."""
    gate, saver = Gate(lambda: str(interrupt("may I?"))), InMemorySaver()
    model = ScriptedModel([calls("work"), "done"])
    async with create_agent(model, [gate.work], checkpointer=saver) as agent:
        run = await agent.start(QUESTION, AT, durability=durability)
        await gate.begun.wait()
        await agent.say("and hurry", AT)
        gate.open.set()
        await run.result()

        later = create_agent(model, [gate.work], checkpointer=copy_of(saver))
        state = await later.ainvoke(Command(resume="yes"), AT, durability=durability)

    assert shape(state)[2:] == ["tool:yes", "human:and hurry", "ai:done"]


async def speak_and_read(url: str) -> None:
    """Say messages to a run on a database, and read them from it with another agent object."""
    gate = Gate()
    async with run_at_work(create_react_agent, gate, saver=url) as (agent, run):
        for number in range(3):
            await agent.say(f"m{number}", AT)
        gate.open.set()
        await run.result()
    async with create_react_agent(ScriptedModel(["yes"]), [gate.work], checkpointer=url) as agent:
        state = await agent.ainvoke(say("more"), AT)
    assert shape(state)[2:] == [
        *("tool:worked", "human:m0", "human:m1", "human:m2", "ai:done"),
        *("human:more", "ai:yes"),
    ]


async def test_messages_are_stored_in_sqlite(tmp_path: Path) -> None:
    await speak_and_read(f"sqlite:///{tmp_path / 'agent.db'}")


@pytest.mark.exhaustive
async def test_messages_are_stored_in_postgresql(postgres_url: str) -> None:
    await speak_and_read(postgres_url)


async def stop_with_unread_message(saver: Any) -> Agent:
    """Return an agent whose run has failed after its reply, with a message that is stored and not read."""
    failures: list[Exception] = [ConnectionError("lost")]

    async def fail_once(_: Any) -> dict[str, Any]:
        if failures:
            assert await agent.say("and hurry", AT) is not None
            raise failures.pop()
        return {}

    agent = create_react_agent(ScriptedModel(["done"], loop=True), [], checkpointer=saver, post_model_hook=fail_once)
    with pytest.raises(ConnectionError):
        await agent.ainvoke(QUESTION, AT)
    return agent


async def test_a_change_of_the_state_keeps_an_unread_message(saver: Any) -> None:
    agent = await stop_with_unread_message(saver)
    await agent.aupdate_state(AT, {"messages": [("user", "by the way")]}, as_node="__start__")
    state = await agent.ainvoke(None, AT)

    assert texts_of_persons(state["messages"]) == Counter(["go", "by the way", "and hurry"])
    assert complaint(state["messages"]) is None


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@pytest.mark.backends("asyncio")
async def test_an_agent_of_langgraph_passes_over_unread_messages() -> None:
    """They are in callboard's journal on the checkpoint before its own, where nobody looks for them any more."""
    for is_read_first in (True, False):
        saver = InMemorySaver()
        agent = await stop_with_unread_message(saver)
        if is_read_first:
            await agent.ainvoke(None, AT)
        their_agent = langgraph_agent(ScriptedModel(["hello"]), [], checkpointer=saver)
        await their_agent.ainvoke(say("hi"), AT)
        state = await agent.aget_state(AT)

        assert ("and hurry" in texts_of_persons(state.values["messages"])) is is_read_first


@pytest.mark.backends("asyncio")
async def test_a_run_in_a_graph_takes_no_messages() -> None:
    """The thread belongs to the graph, which knows nothing of them."""
    gate, answers = Gate(), list[Any]()
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [gate.work], checkpointer=True)
    alone = create_react_agent(ScriptedModel(["never"]), [], checkpointer=InMemorySaver())
    graph = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent")
    compiled = graph.compile(checkpointer=InMemorySaver())

    async def speak() -> None:
        await gate.begun.wait()
        with pytest.raises(ValueError, match="No checkpointer set"):
            await agent.say("hello", AT)
        answers.append(await alone.say("hello", AT))
        gate.open.set()

    async with anyio.create_task_group() as group:
        group.start_soon(speak)
        state = await compiled.ainvoke(QUESTION, AT)

    assert answers == [None]
    assert shape(state)[2:] == ["tool:worked", "ai:done"]


async def test_messages_of_several_event_loops_are_read_once_each(saver: Any) -> None:
    """Each sender has a thread with an event loop of its own, as sync workers of a web server have."""
    gate = Gate()
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [gate.work], checkpointer=saver)

    async def speak(sender: int) -> None:
        for number in range(5):
            assert await agent.say(f"m{sender}-{number}", AT) is not None

    async with agent:
        run = await agent.start(QUESTION, AT)
        await gate.begun.wait()
        async with anyio.create_task_group() as group:
            for sender in range(4):
                backend = ("asyncio", "trio")[sender % 2]
                group.start_soon(anyio.to_thread.run_sync, partial(anyio.run, speak, sender, backend=backend))
        gate.open.set()
        state = await run.result()

    messages = [message.text for message in state["messages"] if message.text.startswith("m")]
    assert len(messages) == 20
    for sender in range(4):  # in the order of their sender
        assert [text for text in messages if text.startswith(f"m{sender}-")] == [f"m{sender}-{n}" for n in range(5)]


class Office:
    """An agent whose calls wait, persons who speak to it at any time, and a record of their messages."""

    def __init__(self, replies: Sequence[int]) -> None:
        self.permits, self.is_closed = anyio.Semaphore(0), False
        self.stored: list[str] = []
        self.sent_texts: list[str] = []
        self._replies = [
            calls(*(tool_call("work", f"{number}-{call}") for call in range(count))) if count else "done"
            for number, count in enumerate(replies)
        ]
        self.model = ScriptedModel([*self._replies, "done"], loop=True)

    async def work(self) -> str:
        """Work."""
        if not self.is_closed:
            await self.permits.acquire()
        return "worked"

    def close(self) -> None:
        """Let all calls go on, also later ones."""
        self.is_closed = True
        for _ in range(100):
            self.permits.release()

    async def speak(self, agent: Agent, *, give_up: bool) -> None:
        text = f"m{len(self.sent_texts)}"
        self.sent_texts.append(text)
        with suppress(RunCancelledError, OpenCallsError):  # the run that began with the message
            await agent.say(text, AT, start=True, give_up=give_up)
            self.stored.append(text)

    async def cancel(self, agent: Agent) -> None:
        with suppress(LookupError):
            await agent.live("1").cancel()

    async def go_on(self, agent: Agent) -> None:
        with suppress(ThreadBusyError, RunCancelledError):
            await (await agent.start(None, AT)).result()


ACTIONS = st.lists(st.sampled_from(["say", "give up", "permit", "cancel", "go on", "pause"]), max_size=14)


@given(actions=ACTIONS, replies=st.lists(st.integers(0, 2), max_size=4))
async def test_in_any_order_of_events_each_stored_message_is_read_once(actions: list[str], replies: list[int]) -> None:
    office, saver = Office(replies), InMemorySaver()
    agent = create_react_agent(office.model, [office.work], checkpointer=saver, loop_guard=False)
    with anyio.fail_after(WAIT):
        async with agent, anyio.create_task_group() as group:
            await agent.start(QUESTION, AT)
            for action in actions:
                match action:
                    case "say" | "give up":
                        group.start_soon(partial(office.speak, agent, give_up=action == "give up"))
                    case "permit":
                        office.permits.release()
                    case "cancel":
                        group.start_soon(office.cancel, agent)
                    case "go on":
                        group.start_soon(office.go_on, agent)
                    case _:
                        await anyio.wait_all_tasks_blocked()
            await anyio.wait_all_tasks_blocked()
            office.close()
        state = await agent.ainvoke(None, AT)

    conversation = texts_of_persons(state["messages"])
    assert max(conversation.values()) == 1
    assert {"go", *office.stored} <= conversation.keys() <= {"go", *office.sent_texts}
    assert complaint(state["messages"]) is None
    assert [wrong for request in office.model.requests if (wrong := complaint(request))] == []
