"""Actors whose states are stored with a thread: each past place of the thread restores the state of that place."""

from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent as langgraph_agent
from langgraph.types import Command, interrupt
from langgraph.warnings import LangGraphDeprecatedSinceV10

from callboard import (
    CallPolicy,
    SnapshotError,
    ThreadBusyError,
    ToolNode,
    child,
    create_react_agent,
    handler,
    tool_call,
)
from callboard.testing import ScriptedModel, calls
from callboard.threads import Threads

from ._notebooks import Lines, Notebook
from ._savers import AT, QUESTION, SAVERS, copy_of, saver_of, say, scripted

pytestmark = pytest.mark.real_clock


@pytest.fixture(params=[*SAVERS, pytest.param("postgres", marks=pytest.mark.exhaustive)])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """Each kind of checkpointer."""
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_url")
    else:
        async with saver_of(request.param, tmp_path / "db") as opened_saver:
            yield opened_saver


@pytest.fixture(autouse=True)
def _no_starts() -> None:
    Notebook.starts.clear()


def reply(messages: list[Any]) -> Any:
    """Append what the user says."""
    last = messages[-1]
    return calls(("append", {"line": last.content})) if last.type == "human" else f"said {last.content}"


def scribe(saver: Any, **terms: Any) -> Any:
    """An agent that appends each message to its notebook, and reads all lines."""
    notebook = child(Notebook, snapshots="journal", **terms)
    return scripted([reply], [notebook], loop=True, checkpointer=saver)


def last(result: Any) -> str:
    return str(result["messages"][-1].content)


@pytest.mark.parametrize("durability", ["exit", "sync", "async"])
async def test_the_state_goes_from_run_to_run_with_the_thread(saver: Any, durability: Any) -> None:
    """With durability "exit", the states are all stored at the end of the run."""
    agent = scribe(saver)
    answers = [last(await agent.ainvoke(say(text), AT, durability=durability)) for text in "abc"]
    await agent.aclose()
    assert answers == ["said a", "said a,b", "said a,b,c"]
    assert Notebook.starts == ["1"] * 3


async def test_an_actor_that_lives_on_is_not_restored_where_the_thread_stands_as_it_was(saver: Any) -> None:
    agent = scribe(saver)
    async with agent:
        for text in "abc":
            answer = last(await agent.ainvoke(say(text), AT))
    assert answer == "said a,b,c"
    assert Notebook.starts == ["1"]


async def test_before_anything_was_done_the_actor_is_new_and_nothing_is_said_to_be_lost(saver: Any) -> None:
    agent = scribe(saver)
    async with agent:
        await agent.ainvoke(say("a"), AT)
        await agent.ainvoke(say("b"), AT)
        snapshots = [snapshot async for snapshot in agent.aget_state_history(AT)]
        answer = last(await agent.ainvoke(say("c"), snapshots[-1].config))
    assert answer == "said c"
    assert Notebook.starts == ["1", "1"]


async def test_what_another_process_has_done_meanwhile_counts(saver: Any) -> None:
    agent, other_agent = scribe(saver), scribe(saver)
    async with agent:
        await agent.ainvoke(say("a"), AT)
        await other_agent.ainvoke(say("b"), AT)
        answer = last(await agent.ainvoke(say("c"), AT))
    await other_agent.aclose()
    assert answer == "said a,b,c"


async def test_each_thread_has_its_own_and_each_key_within_it(saver: Any) -> None:
    notebook = child(Notebook, key=lambda call: call["args"]["line"][0], snapshots="journal", cap=1)
    agent = scripted([reply], [notebook], loop=True, checkpointer=saver)
    other_thread: Any = {"configurable": {"thread_id": "2"}}
    async with agent:
        answers = [
            last(await agent.ainvoke(say(text), thread))
            for text, thread in [
                ("a1", AT),
                ("b1", AT),
                ("a2", other_thread),
                ("a3", AT),
                ("b4", other_thread),
                ("b5", AT),
            ]
        ]
    assert answers == ["said a1", "said b1", "said a2", "said a1,a3", "said b4", "said b1,b5"]
    assert set(Notebook.starts) == {"a", "b"}


class Album(Lines):
    """Pictures, which are large."""

    @handler
    async def append(self, line: str) -> int:
        """Take a picture, or return the existing ones."""
        if line == "shoot":
            self.lines.append(b"\x07" * 1_000_000)
        return sum(map(len, self.lines))


def size(saver: Any) -> int:
    """Return the number of bytes in a SQLite saver."""
    columns = {"checkpoints": "length(checkpoint) + length(metadata)", "writes": "length(value)"}
    return sum(saver.conn.execute(f"SELECT sum({sizes}) FROM {name}").fetchone()[0] for name, sizes in columns.items())


async def test_what_has_not_changed_is_not_stored_again(tmp_path: Path) -> None:
    async with saver_of("sqlite", tmp_path / "db") as saver:
        agent = scripted([reply], [child(Album, snapshots="journal")], loop=True, checkpointer=saver)
        await agent.ainvoke(say("shoot"), AT)
        first = size(saver)
        for _ in range(10):
            answer = last(await agent.ainvoke(say("look"), AT))
        snapshot = [snapshot async for snapshot in agent.aget_state_history(AT)][5]
        forked = last(await agent.ainvoke(say("look"), snapshot.config))
        await agent.aupdate_state(AT, None, "__copy__")
        copied = last(await agent.ainvoke(say("look"), AT))
        end = size(saver)
    assert answer == forked == copied == "said 1000000"
    assert 1_000_000 < first < 1_050_000
    assert end < first + 200_000


class Stubborn(Notebook):
    """Has a state that cannot be stored, once."""

    async def snapshot(self) -> Any:
        return object() if self.lines == ["bad"] else self.lines


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_state_that_cannot_be_stored_is_an_error_that_names_the_actor(saver: Any, is_open: bool) -> None:
    """The call is not counted as finished, so it runs again on the state before it."""
    agent = scripted([reply], [child(Stubborn, snapshots="journal")], loop=True, checkpointer=saver)
    async with agent if is_open else nullcontext():
        with pytest.raises(SnapshotError, match=r"the actor Stubborn\['1'\] cannot be kept in the journal: .*object"):
            await agent.ainvoke(say("bad"), AT)
        state = await agent.aget_state(AT)
        answer = last(await agent.ainvoke(say("a"), AT))
    assert "object" in str(state.tasks[0].error)
    assert answer == "said a"


async def test_a_deleted_thread_takes_its_states_along() -> None:
    saver = InMemorySaver()
    agent = scribe(saver)
    async with agent:
        await agent.ainvoke(say("a"), AT)
        saver.delete_thread("1")
        answer = last(await agent.ainvoke(say("b"), AT))
    assert answer == "said b"


async def test_a_state_that_somebody_has_deleted_is_missed(tmp_path: Path) -> None:
    async with saver_of("sqlite", tmp_path / "db") as saver:
        agent = scribe(saver)
        await agent.ainvoke(say("a"), AT)
        saver.conn.execute("DELETE FROM writes")
        answer = last(await agent.ainvoke(say("b"), AT))
    assert "has lost the state of the actor 'Notebook'" in answer


async def test_langgraphs_own_agent_hands_the_states_on() -> None:
    """LangGraph's agent does not know the states, but its checkpoints follow the one that refers to them."""
    saver = InMemorySaver()
    with pytest.warns(LangGraphDeprecatedSinceV10):
        their_agent: Any = langgraph_agent(ScriptedModel(["hello"]), [], checkpointer=saver)
    our_agent = scribe(saver)
    await our_agent.ainvoke(say("a"), AT)
    await anyio.to_thread.run_sync(partial(their_agent.invoke, say("hi"), AT))
    answer = last(await our_agent.ainvoke(say("b"), AT))
    assert answer == "said a,b"


@dataclass
class Page:
    """A page, as a class of the user's application."""

    text: str


class Paper(Notebook):
    """Actor that holds pages."""

    async def snapshot(self) -> Any:
        return [Page(line) for line in self.lines]

    async def restore(self, snapshot: Any) -> None:
        self.lines = [page.text for page in snapshot]


async def test_nobody_but_the_actor_makes_objects_of_its_state(tmp_path: Path) -> None:
    """A process without the actor can show or run the thread without importing the types in its state."""
    url = f"sqlite:///{tmp_path / 'db'}"

    def agent(*types: type) -> Any:
        papers = [child(Paper, snapshots="journal")]
        return scripted([reply], papers, loop=True, checkpointer=url, stored_types=types)

    plain = scripted(["hello"], [], checkpointer=url)
    async with agent() as strict:
        with pytest.raises(SnapshotError, match=r"stored_types=\[Page\]"):
            await strict.ainvoke(say("a"), {"configurable": {"thread_id": "2"}})
    async with agent(Page) as allowed:
        await allowed.ainvoke(say("a"), AT)
        async with plain:
            await plain.ainvoke(say("hi"), AT)
        answer = last(await allowed.ainvoke(say("b"), AT))
        with Threads(url) as threads:
            stored_thread = await threads.read("1")
            snapshots = await threads.history("1")
    assert answer == "said a,b"
    assert stored_thread is not None
    assert stored_thread.turns == 3
    assert stored_thread.other_keys == []
    assert len(snapshots) > 5


async def test_from_sync_code_on_another_event_loop(tmp_path: Path) -> None:
    """The actor lives on this loop; sync runs in a thread ask it, each from a loop of its own."""
    async with saver_of("sqlite", tmp_path / "db") as saver:
        agent = scribe(saver)
        async with agent:
            early = None
            for text in "abc":
                answer = last(await anyio.to_thread.run_sync(agent.invoke, say(text), AT))
                early = early or await agent.aget_state(AT)
            assert early is not None
            forked = last(await anyio.to_thread.run_sync(agent.invoke, say("d"), early.config))
    assert (answer, forked) == ("said a,b,c", "said a,d")


async def test_two_runs_of_a_thread_do_not_share_an_actor() -> None:
    """With durability "exit" no thread is held, so each run has its own actor; an open agent refuses the second run."""
    errors: list[ThreadBusyError] = []
    agent = scribe(InMemorySaver())

    async def run(text: str) -> None:
        try:
            await agent.ainvoke(say(text), AT, durability="exit")
        except ThreadBusyError as error:
            errors.append(error)

    async with agent, anyio.create_task_group() as group:
        group.start_soon(run, "a")
        group.start_soon(run, "b")
    assert len(errors) == 1


class _Watched(InMemorySaver):
    """Keeps a copy of itself after each write, as a process killed at that point would leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[InMemorySaver] = []

    def put(self, *args: Any, **options: Any) -> Any:
        done = super().put(*args, **options)
        self.copies.append(copy_of(self))
        return done

    def put_writes(self, *args: Any, **options: Any) -> None:
        super().put_writes(*args, **options)
        self.copies.append(copy_of(self))


@pytest.mark.parametrize("lines", [["a1"], ["a1", "b1"], ["b1", "c1", "a1", "d1"]])
async def test_a_process_that_is_killed_at_any_write_has_done_each_call_once(lines: list[str]) -> None:
    """State and result of a call are one write: if the call runs again, its line is still there only once."""
    script = [calls(*(("append", {"line": line}) for line in lines)), calls(("append", {"line": "a9"})), "done"]

    def reply(messages: list[Any]) -> Any:
        return script[sum(message.type == "ai" for message in messages)]

    def agent(saver: Any) -> Any:
        notebook = child(Notebook, key=lambda call: call["args"]["line"][0], snapshots="journal")
        return scripted([reply], [notebook], loop=True, checkpointer=saver, on_unknown="rerun")

    watched, killed = _Watched(), 0
    await agent(watched).ainvoke(say("go"), AT, durability="sync")
    for saver in watched.copies:
        next_agent = agent(saver)
        if not (await next_agent.aget_state(AT)).next:
            continue  # the run had not begun, or was finished
        killed += 1
        result = await next_agent.ainvoke(None, AT)
        results = [tool_message.content for tool_message in result["messages"] if tool_message.type == "tool"]
        assert results == [*lines, "a1,a9"]
    assert killed > 5


class Slow(Notebook):
    """Lines of text, to which calls append that take longer than their time in the foreground."""

    @handler
    async def append(self, line: str) -> str:
        """Append a line."""
        self.lines.append(line)
        await anyio.sleep(0.1)
        return ",".join(self.lines)


async def test_a_process_that_is_killed_at_any_write_has_the_state_of_each_background_call_with_a_result() -> None:
    """State and result of a call in the background are one write, too: what the model reads has happened."""

    def reply(messages: list[Any]) -> Any:
        line = "b" if any(message.text == "more" for message in messages) else "a"
        lines = [call["args"]["line"] for message in messages if message.type == "ai" for call in message.tool_calls]
        return "done" if line in lines else [tool_call("append", line, line=line)]

    def agent(saver: Any, *, background: bool) -> Any:
        policies = {"append": CallPolicy(background=background or None)}
        node = ToolNode([child(Slow, snapshots="journal")], policies=policies)
        return scripted([reply], node, loop=True, checkpointer=saver)

    watched, outcomes = _Watched(), set[tuple[bool, str]]()
    await agent(watched, background=True).ainvoke(say("go"), AT)
    for saver in watched.copies:
        next_agent = agent(saver, background=False)
        messages = (await next_agent.ainvoke(say("more"), AT))["messages"]
        for message in messages:
            if message.id == "bg-a":
                outcomes.add((message.text.endswith("\na"), results({"messages": messages})[-1]))
    assert outcomes == {(False, "b"), (True, "a,b")}


# A state is stored together with the result of its call; a state that cannot be stored is discarded.


class Fragile(Notebook):
    """Lines of text that cannot always be stored."""

    async def snapshot(self) -> Any:
        return None if "nothing" in self.lines else self.lines

    @handler
    async def spoil(self) -> str:
        """Append a value that no serializer accepts."""
        self.lines.append(lambda: None)
        return "spoilt"

    @handler
    async def spoil_and_fail(self) -> str:
        """Append a value that no serializer accepts, and fail."""
        self.lines.append(lambda: None)
        raise KeyError("of its own")

    @handler
    async def append_and_ask(self, line: str) -> str:
        """Append a line, and ask."""
        self.lines.append(line)
        return f"{interrupt('really?')} {','.join(self.lines)}"


def asking(*requests: Any) -> ScriptedModel:
    def reply(messages: list[Any]) -> Any:
        return AIMessage("", tool_calls=list(requests)) if messages[-1].type == "human" else "done"

    return ScriptedModel([reply], loop=True)


def results(state: Any) -> list[str]:
    return [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)]


def agent_with(model: ScriptedModel, saver: Any, *extra_tools: Any, wrapper: Any = None) -> Any:
    notebook = child(Fragile, snapshots="journal")
    node = ToolNode([notebook, *extra_tools], awrap_tool_call=wrapper, handle_tool_errors=True, on_unknown="rerun")
    return create_react_agent(model, node, checkpointer=saver)


@pytest.mark.parametrize("is_open", [False, True])
async def test_the_result_of_a_neighbour_stores_no_state_of_a_call_that_has_none(is_open: bool) -> None:
    """The run is cancelled while a middleware holds the result, so the call runs again on the state before it."""
    is_held, has_ended = anyio.Event(), anyio.Event()

    @tool
    async def look() -> str:
        """Look."""
        await is_held.wait()
        return "fine"

    async def hold(request: Any, execute: Any) -> Any:
        result = await execute(request)
        if request.tool_call["name"] == "append" and not has_ended.is_set():
            is_held.set()
            await anyio.sleep_forever()
        has_ended.set() if request.tool_call["name"] == "append" else scope.cancel()
        return result

    model = asking(tool_call("append", "c1", line="a"), tool_call("look", "c2"))
    agent = agent_with(model, InMemorySaver(), look, wrapper=hold)
    async with agent if is_open else nullcontext():
        with anyio.CancelScope() as scope:
            await agent.ainvoke(QUESTION, AT)
        has_ended.set()
        assert results(await agent.ainvoke(None, AT)) == ["a", "fine"]


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_call_that_waits_for_a_person_runs_again_on_the_state_before_it(is_open: bool) -> None:
    """A change that the call made before its question is not made twice."""
    agent = agent_with(asking(tool_call("append_and_ask", "c1", line="a")), InMemorySaver())
    async with agent if is_open else nullcontext():
        await agent.ainvoke(QUESTION, AT)
        assert results(await agent.ainvoke(Command(resume="yes"), AT)) == ["yes a"]


async def test_within_a_run_the_actor_comes_back_with_the_state_that_is_kept() -> None:
    """Otherwise each later call would fail because of the call that made the state unserializable."""

    def reply(messages: list[Any]) -> Any:
        steps = [("append", {"line": "a"}), ("spoil", {}), ("append", {"line": "b"})]
        done = sum(message.type == "tool" for message in messages)
        if done == len(steps):
            return "done"
        name, args = steps[done]
        return AIMessage("", tool_calls=[tool_call(name, f"c{done}", **args)])

    agent = agent_with(ScriptedModel([reply], loop=True), InMemorySaver())
    texts = results(await agent.ainvoke(QUESTION, AT))
    assert texts[0] == "a"
    assert "cannot be kept" in texts[1]
    assert texts[2].startswith("a,b")
    assert "is lost" in texts[2]


@pytest.mark.parametrize(
    ("requested_call", "reason"),
    [
        (tool_call("spoil_and_fail", "c1"), "of its own"),
        (tool_call("append", "c1", line="nothing"), "`snapshot` returned None"),
    ],
    ids=["an error of the handler", "no snapshot"],
)
async def test_the_model_reads_why_a_state_was_not_stored(requested_call: Any, reason: str) -> None:
    """A handler's own error comes first. A `snapshot` that returns None probably lacks its `return`."""
    [text] = results(await agent_with(asking(requested_call), InMemorySaver()).ainvoke(QUESTION, AT))
    assert reason in text


async def test_a_snapshot_that_restore_does_not_take_is_named() -> None:
    """The class may have changed since the state was stored; the error names the actor."""

    class Changed(Fragile):
        async def restore(self, snapshot: Any) -> None:
            self.lines = snapshot["lines"]

    saver = InMemorySaver()
    await agent_with(asking(tool_call("append", "c1", line="a")), saver).ainvoke(QUESTION, AT)
    node = ToolNode([child(Changed, name="Fragile", snapshots="journal")], handle_tool_errors=True)
    agent = create_react_agent(asking(tool_call("append", "c2", line="b")), node, checkpointer=saver)
    text = results(await agent.ainvoke(QUESTION, AT))[-1]
    assert "`restore` failed with the snapshot that is kept" in text


async def test_an_open_agent_remembers_no_thread_whose_actor_has_gone() -> None:
    """An open agent may run any number of threads, so it must not keep records of evicted actors."""
    node = ToolNode([child(Fragile, snapshots="journal", cap=2)])
    agent = create_react_agent(asking(tool_call("append", "c1", line="a")), node, checkpointer=InMemorySaver())
    async with agent:
        for number in range(6):
            await agent.ainvoke(QUESTION, {"configurable": {"thread_id": str(number)}})
        session: Any = node._setup.actors.session()
        snapshots = session.keyed_actors[0].spec.snapshots
        assert len(snapshots._versions) <= 2


class TornNotebook(Lines):
    """Lines of text on paper that tears."""

    @handler
    async def tear(self) -> None:
        """Tear the paper."""
        raise SystemError("the paper is torn")

    fatal = (SystemError,)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (None, "TornNotebook['1']"),
        (lambda call, context: context.config["configurable"]["thread_id"], "TornNotebook['1']"),
        (lambda call: "blue", "TornNotebook['1', 'blue']"),
    ],
    ids=["no key", "the id of the thread", "another key"],
)
async def test_an_actor_is_named_by_its_thread_and_its_key_once(key: Any, name: str) -> None:
    """The name stands in errors, logs and spans; one text twice looks like two keys."""
    notebook = child(TornNotebook, key=key, snapshots="journal")
    node = ToolNode([notebook], handle_tool_errors=True)
    agent = scripted([calls("tear"), "end"], node, checkpointer=InMemorySaver())
    async with agent:
        state = await agent.ainvoke(say("go"), AT)
    assert f"{name} died" in state["messages"][-2].content
