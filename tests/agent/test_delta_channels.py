"""Threads with LangGraph's `DeltaChannel`, as deepagents has them: LangGraph's agents and callboard's continue them.

LangGraph stores the writes to such a channel, and the whole value only in some checkpoints.
"""

import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import anyio
import ormsgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent as langchains_agent
from langchain.agents.middleware import AgentState
from langchain_core.messages import AnyMessage, BaseMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command, Overwrite, interrupt

from callboard import StorageError, create_agent, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls
from callboard.threads import Threads

from ._graphs import chain
from ._savers import AT, complaint, contents, say
from .test_postgres import saver_on

# LangChain's agent runs on a loop in another thread, which a virtual clock would not wait for.
pytestmark = pytest.mark.real_clock

OFTEN = 5
"""Updates after which LangGraph stores the whole value of a channel."""


def merge_files(before: dict[str, str], writes: Sequence[dict[str, str]]) -> dict[str, str]:
    return {name: text for files in (before, *writes) for name, text in files.items()}


class Deltas(AgentState[Any]):
    """State of an agent, with the channels of deepagents."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=OFTEN)]  # type: ignore[misc]
    files: Annotated[dict[str, str], DeltaChannel(merge_files, snapshot_frequency=2 * OFTEN)]


@tool
def write(path: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Write a file."""
    return Command(
        update={"files": {path: f"in {path}"}, "messages": [ToolMessage(f"wrote {path}", tool_call_id=call_id)]}
    )


@tool
def ask(question: str) -> str:
    """Ask a person."""
    return f"{question}: {interrupt(question)}"


def reply(messages: Sequence[BaseMessage]) -> Any:
    """Return the calls that the user's message asks for, or a text.

    "write a b" writes two files, "ask a" asks a question, and "both a" writes a file and then asks.
    """
    message, number = messages[-1], len(messages)
    word, *names = str(message.content).split()
    if number > 2 and str(messages[-3].content).startswith("both"):
        return calls(tool_call("ask", f"{number} ask", question=names[0]))
    word = "write" if word == "both" else word
    if message.type != "human" or word not in ("write", "ask"):
        return f"done {number}"
    field = "path" if word == "write" else "question"
    return calls(*(tool_call(word, f"{number} {name}", **{field: name}) for name in names))


def agent(factory: Any, saver: Any, schema: Any = Deltas) -> Any:
    return factory(ScriptedModel([reply], loop=True), [write, ask], state_schema=schema, checkpointer=saver)


class Desk:
    """LangChain's agent and callboard's on one checkpointer; `side` is "theirs" or "ours"."""

    def __init__(self, saver: Any) -> None:
        self.theirs, self.ours = agent(langchains_agent, saver), agent(create_agent, saver)

    async def run(self, side: str, name: str, *arguments: Any, **options: Any) -> Any:
        with anyio.fail_after(60):
            if side == "ours":
                return await getattr(self.ours, f"a{name}")(*arguments, **options)
            return await anyio.to_thread.run_sync(partial(getattr(self.theirs, name), *arguments, **options))

    async def say(self, side: str, text: str, config: Any = AT, **options: Any) -> Any:
        return await self.run(side, "invoke", say(text), config, **options)

    async def answer(self, side: str, text: str) -> Any:
        return await self.run(side, "invoke", Command(resume=text), AT)

    async def update(self, side: str, values: Any, config: Any = AT, as_node: str | None = None) -> Any:
        return await self.run(side, "update_state", config, values, as_node)

    async def read(self, config: Any = AT) -> dict[str, Any]:
        """Return the state that both agents read."""
        our_state = await self.run("ours", "get_state", config)
        their_state = await self.run("theirs", "get_state", config)
        assert our_state.values == their_state.values
        assert (our_state.next, {question.id for question in our_state.interrupts}) == (
            their_state.next,
            {question.id for question in their_state.interrupts},
        )
        return dict(our_state.values)

    async def history(self, side: str) -> list[Any]:
        if side == "ours":
            return [snapshot async for snapshot in self.ours.aget_state_history(AT)]
        return await anyio.to_thread.run_sync(lambda: [*self.theirs.get_state_history(AT)])


@pytest.fixture
def desk(saver: Any) -> Desk:
    return Desk(saver)


def turn(*names: str, count: int) -> list[str]:
    """Return the contents of a turn in which files are written, after `count` messages."""
    return [" ".join(("write", *names)), "", *(f"wrote {name}" for name in names), f"done {count + 2 + len(names)}"]


def files(*names: str) -> dict[str, str]:
    return {name: f"in {name}" for name in names}


async def test_threads_change_agents_between_turns(desk: Desk) -> None:
    """Each agent reads the whole value, whoever has stored it and in whichever form.

    With the durability "exit", LangGraph stores the writes of several steps on one checkpoint.
    """
    expected_contents: list[str] = []
    written: list[str] = []
    # Three turns of LangChain's agent in a row: one checkpoint has the whole value, and later ones the writes.
    for number, side in enumerate(["theirs", "ours", "theirs", "theirs", "theirs", "ours", "ours", "theirs"]):
        names = f"a{number}", f"b{number}"
        durability = ("async", "exit", "sync")[number % 3]
        result = await desk.say(side, f"write {' '.join(names)}", durability=durability)
        expected_contents += turn(*names, count=len(expected_contents))
        written += names
        assert contents(result) == expected_contents
        assert result["files"] == files(*written)
        assert await desk.read() == result


async def test_every_position_can_be_gone_back_to(desk: Desk) -> None:
    for text in ("write a", "write b", "write c"):
        await desk.say("theirs", text)
    snapshots = [snapshot for snapshot in await desk.history("theirs") if not snapshot.next and snapshot.values]
    for number, snapshot in enumerate(snapshots):
        for side in ("ours", "theirs"):
            result = await desk.say(side, f"write {side}{number}", snapshot.config)
            assert result["files"] == snapshot.values["files"] | files(f"{side}{number}")
            assert result["messages"][: len(snapshot.values["messages"])] == snapshot.values["messages"]
            assert await desk.read() == result
            assert await desk.read(snapshot.config) == snapshot.values


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("keeps", [None, True], ids=["anew", "kept"])
async def test_an_agent_in_a_graph_goes_on_for_the_other(saver: Any, first: str, keeps: bool | None) -> None:
    factories = {"ours": create_agent, "theirs": langchains_agent}
    graphs = {side: chain(("worker", agent(factory, keeps)), saver=saver) for side, factory in factories.items()}
    second = "theirs" if first == "ours" else "ours"
    for number in range(2):
        await anyio.to_thread.run_sync(graphs[first].invoke, say(f"both {number}"), AT)
        states = [
            await anyio.to_thread.run_sync(partial(graph.get_state, AT, subgraphs=True)) for graph in graphs.values()
        ]
        inside = [state.tasks[0].state.values for state in states]
        assert inside[0] == inside[1]
        assert inside[0]["files"] == files(*map(str, range(number + 1) if keeps else [number]))
        result = await anyio.to_thread.run_sync(graphs[second].invoke, Command(resume="yes"), AT)
        assert contents(result)[-2:] == [f"{number}: yes", f"done {6 * number + 5}"]


class Counting(InMemorySaver):
    """Counts the histories of channels that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.histories: list[list[str]] = []

    def get_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> Any:
        self.histories.append([*channels])
        return super().get_delta_channel_history(config=config, channels=channels)


async def test_a_run_reads_the_history_once_and_only_if_the_checkpoint_lacks_a_value() -> None:
    saver = Counting()
    desk = Desk(saver)
    await desk.say("theirs", "write a")
    saver.histories.clear()
    await desk.say("ours", "write b c")
    assert saver.histories == [["messages", "files"]]
    await desk.say("ours", "write d")
    assert len(saver.histories) == 1


async def test_agents_without_such_channels_read_no_history() -> None:
    saver = Counting()
    for factory in (langchains_agent, create_agent, langchains_agent, create_agent):
        new_agent = factory(ScriptedModel([reply], loop=True), [ask], checkpointer=saver)
        await anyio.to_thread.run_sync(new_agent.invoke, say("hello"), AT)
    assert saver.histories == []


async def test_an_agent_with_other_channels_reads_the_conversation(saver: Any) -> None:
    """LangGraph reads such a thread, too: the channel may have changed since the thread was stored."""
    desk = Desk(saver)
    await desk.say("theirs", "write a")
    before = await desk.say("theirs", "hello")
    plain = create_react_agent(ScriptedModel([reply], loop=True), [ask], checkpointer=saver)
    assert (await plain.aget_state(AT)).values["messages"] == before["messages"]
    after = await plain.ainvoke(say("hello"), AT)
    assert after["messages"][:-2] == before["messages"]
    # The agent has not changed the files, and has not lost them either.
    assert await desk.read() == {"messages": after["messages"], "files": files("a")}


async def test_stored_threads_show_such_a_conversation(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'db'}"
    with Threads(url) as threads:
        their_agent = agent(langchains_agent, threads.saver_for(agent(create_agent, None)))
        for text in ("write a", "hello"):
            result = await anyio.to_thread.run_sync(their_agent.invoke, say(text), AT)
        stored_thread = await threads.read("1")
        assert stored_thread is not None
        assert stored_thread.messages == result["messages"]


async def test_a_checkpointer_without_histories_is_refused() -> None:
    """Read as empty, the conversation would be lost without a word."""

    class Lacking(InMemorySaver):
        def get_delta_channel_history(self, **options: Any) -> Any:
            raise NotImplementedError

    saver = InMemorySaver()
    await Desk(saver).say("theirs", "write a")
    lacking = Lacking()
    lacking.storage, lacking.writes, lacking.blobs = saver.storage, saver.writes, saver.blobs
    with pytest.raises(StorageError, match=r"'messages' in LangGraph's DeltaChannel.*begin a new one"):
        await agent(create_agent, lacking).ainvoke(say("hello"), AT)


async def test_a_damaged_checkpoint_in_the_history_is_told(tmp_path: Path) -> None:
    async with saver_on(f"sqlite:///{tmp_path / 'db'}", "url") as saver:
        desk = Desk(saver)
        await desk.say("theirs", "write a")
        with sqlite3.connect(tmp_path / "db") as database:
            rows = database.execute("SELECT checkpoint_id FROM checkpoints ORDER BY checkpoint_id").fetchall()
            damage = "UPDATE checkpoints SET checkpoint = ? WHERE checkpoint_id = ?"
            database.execute(damage, (ormsgpack.packb([1]), rows[-2][0]))
        with pytest.raises(StorageError, match="no conversation"):
            await desk.say("ours", "hello")


async def test_a_call_without_a_result_is_repaired_in_its_place(desk: Desk) -> None:
    """The repair replaces the conversation; it is not added to it."""
    conversation = [("user", "hi"), calls(tool_call("ask", "lost", question="a")), ("user", "never mind")]
    result = await desk.run("ours", "invoke", {"messages": conversation}, AT)
    assert [message.type for message in result["messages"]] == ["human", "ai", "tool", "human", "ai"]
    assert complaint(result["messages"]) is None
    assert await desk.read() == result


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["sqlite url", "url", "sync", "async"])
@pytest.mark.parametrize(
    "check", [test_threads_change_agents_between_turns, test_every_position_can_be_gone_back_to], ids=["turns", "past"]
)
async def test_other_databases(check: Any, kind: str, postgres_url: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'db'}" if kind == "sqlite url" else postgres_url
    async with saver_on(url, kind.removeprefix("sqlite ")) as saver:
        await check(Desk(saver))


class Place(NamedTuple):
    """Position of a thread after a change."""

    side: str
    """Agent that made the change."""
    configs: list[Any]
    """Configs of the position in both threads."""
    state: Any
    """Snapshot of the state, as callboard reads it."""


class Walk:
    """One thread that both agents change, and a thread of LangChain's agent alone that gets the same changes."""

    def __init__(self) -> None:
        self.mixed, self.pure = Desk(InMemorySaver()), Desk(InMemorySaver())
        self.places: list[Place] = []

    async def step(self, side: str, action: str, share: float) -> None:
        """Change both threads at one of their positions: at the latest if `share` is 1, else at an earlier one."""
        # LangGraph does not read each earlier position of callboard. A position with a question is answered first.
        past = [place for place in self.places if not place.state.interrupts and side in ("ours", place.side)]
        asks = bool(self.places) and self.places[-1].state.interrupts
        if asks and self.places[-1].side == "ours":
            side = "ours"  # LangGraph does not see the questions of a batch that callboard has not ended
        configs: list[Any] = [AT, AT] if asks or share == 1 or not past else past[int(share * len(past))].configs
        for desk, agent_of, config in ((self.mixed, side, configs[0]), (self.pure, "theirs", configs[1])):
            if asks:
                await desk.answer(agent_of, "yes")
            elif self.places and action in ("update", "overwrite"):
                changed_files = {"o": str(len(self.places))}
                # With the node: LangGraph cannot infer it from callboard's checkpoints.
                await desk.update(
                    agent_of,
                    {"files": changed_files if action == "update" else Overwrite(changed_files)},
                    config,
                    "model",
                )
            else:
                await desk.say(agent_of, action, config)
        states = [await desk.run("ours", "get_state", AT) for desk in (self.mixed, self.pure)]
        assert summary_of(states[0]) == summary_of(states[1])
        if side == "theirs" or not states[0].interrupts:
            assert await self.mixed.read() == states[0].values
        self.places.append(Place(side, [state.config for state in states], states[0]))

    async def check(self) -> None:
        """Assert that all positions are as they were."""
        for place in self.places:
            for side in {"ours", place.side}:
                assert (await self.mixed.run(side, "get_state", place.configs[0])).values == place.state.values


def summary_of(state: Any) -> Any:
    questions = [question.value for question in state.interrupts]
    return contents(state.values), state.values["files"], questions, state.next


ACTIONS = st.sampled_from(["hello", "write a", "write b c", "ask a", "both d", "update", "overwrite"])
STEPS = st.tuples(st.sampled_from(["ours", "theirs"]), ACTIONS, st.one_of(st.just(1.0), st.floats(0, 0.999)))


def answer_steps(first: str, second: str) -> list[Any]:
    """Return steps in which one agent asks, and the other takes the answer and goes on."""
    return [(first, "write b c", 1.0), (first, "ask a", 1.0), (second, "hello", 1.0), (second, "write a", 1.0)]


def update_steps(side: str) -> list[Any]:
    """Return steps in which an agent updates a thread of LangChain's agent, and an earlier position of it."""
    return [("theirs", "write a", 1.0), *((side, *update) for update in UPDATES), ("theirs", "write a", 1.0)]


UPDATES = (("update", 1.0), ("update", 0.0), ("overwrite", 1.0))


@pytest.mark.exhaustive
@settings(max_examples=settings().max_examples // 2)
@example([*answer_steps("theirs", "ours"), *answer_steps("ours", "theirs")])
@example(update_steps("ours"))
@example(update_steps("theirs"))
@given(st.lists(STEPS, min_size=2, max_size=8))
async def test_any_sequence_of_changes_leads_to_what_langchains_agent_alone_has(steps: list[Any]) -> None:
    walk = Walk()
    for step in steps:
        await walk.step(*step)
    await walk.check()
