"""Actors whose states are kept with a thread: a place where it has stood has the state of that place."""

from collections.abc import AsyncIterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent as langgraph_agent
from langgraph.types import Command, interrupt
from langgraph.warnings import LangGraphDeprecatedSinceV10

from callboard import (
    Actor,
    CallPolicy,
    SnapshotError,
    ThreadBusyError,
    ToolNode,
    child,
    create_react_agent,
    handler,
)
from callboard.testing import ScriptedModel, calls
from callboard.threads import Threads

from ._savers import SAVERS, saver_of

pytestmark = pytest.mark.real_clock

WAIT = 20
AT: Any = {"configurable": {"thread_id": "1"}}


@pytest.fixture(params=[*SAVERS, pytest.param("postgres", marks=pytest.mark.exhaustive)])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """Each kind of checkpointer."""
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_url")
    else:
        async with saver_of(request.param, tmp_path / "db") as made:
            yield made


class Notebook(Actor):
    """Lines of text."""

    starts: list[object] = []

    async def start(self) -> None:
        self.starts.append(self.key)
        self.lines: list[str] = []

    async def snapshot(self) -> list[str]:
        return self.lines

    async def restore(self, snapshot: list[str]) -> None:
        self.lines = snapshot

    @handler
    async def append(self, line: str) -> str:
        """Append a line."""
        self.lines.append(line)
        return ",".join(self.lines)


@pytest.fixture(autouse=True)
def _no_starts() -> None:
    Notebook.starts.clear()


def reply(sent: list[Any]) -> Any:
    """Append what the user says."""
    last = sent[-1]
    return calls(("append", {"line": last.content})) if last.type == "human" else f"said {last.content}"


def scribe(saver: Any, **terms: Any) -> Any:
    """An agent that appends each message to its notebook, and says what is in it."""
    notebook = child(Notebook, snapshots="journal", **terms)
    return create_react_agent(ScriptedModel([reply], loop=True), [notebook], checkpointer=saver)


def say(text: str) -> Any:
    return {"messages": [("user", text)]}


def last(result: Any) -> str:
    return str(result["messages"][-1].content)


async def test_the_state_goes_from_run_to_run_with_the_thread(saver: Any) -> None:
    """Each run has its own actors; what they hold is the thread's."""
    agent = scribe(saver)
    with anyio.fail_after(WAIT):
        said = [last(await agent.ainvoke(say(text), AT)) for text in "abc"]
        await agent.aclose()

    assert said == ["said a", "said a,b", "said a,b,c"]
    assert Notebook.starts == ["1"] * 3


@pytest.mark.parametrize("is_open", [False, True])
async def test_from_a_place_of_the_past_the_state_is_that_of_the_place(saver: Any, is_open: bool) -> None:
    """Also where the actor lives on between two runs: what it holds of the later place is not that of the earlier."""
    agent = scribe(saver)
    with anyio.fail_after(WAIT):
        if is_open:
            await agent.__aenter__()
        await agent.ainvoke(say("a"), AT)
        early = await agent.aget_state(AT)
        await agent.ainvoke(say("b"), AT)
        late = await agent.aget_state(AT)
        forked = last(await agent.ainvoke(say("c"), early.config))
        onward = last(await agent.ainvoke(say("d"), AT))
        again = last(await agent.ainvoke(say("e"), late.config))
        await agent.__aexit__(None, None, None)

    assert (forked, onward, again) == ("said a,c", "said a,c,d", "said a,b,e")


async def test_an_actor_that_lives_on_is_not_restored_where_the_thread_stands_as_it_was(saver: Any) -> None:
    """It holds that state: nothing starts, and nothing is read."""
    agent = scribe(saver)
    with anyio.fail_after(WAIT):
        async with agent:
            for text in "abc":
                said = last(await agent.ainvoke(say(text), AT))

    assert said == "said a,b,c"
    assert Notebook.starts == ["1"]


async def test_before_anything_was_done_the_actor_is_new_and_nothing_is_said_to_be_lost(saver: Any) -> None:
    """The model is told of a state that is lost, and not of one that its conversation has not come to."""
    agent = scribe(saver)
    with anyio.fail_after(WAIT):
        async with agent:
            await agent.ainvoke(say("a"), AT)
            await agent.ainvoke(say("b"), AT)
            places = [place async for place in agent.aget_state_history(AT)]
            said = last(await agent.ainvoke(say("c"), places[-1].config))

    assert said == "said c"
    assert Notebook.starts == ["1", "1"]


async def test_what_another_process_has_done_meanwhile_counts(saver: Any) -> None:
    """The thread has moved on under an actor that lives: that comes to where the thread stands now."""
    agent, other = scribe(saver), scribe(saver)
    with anyio.fail_after(WAIT):
        async with agent:
            await agent.ainvoke(say("a"), AT)
            await other.ainvoke(say("b"), AT)
            said = last(await agent.ainvoke(say("c"), AT))
        await other.aclose()

    assert said == "said a,b,c"


@pytest.mark.parametrize("is_open", [False, True])
async def test_an_update_from_outside_is_a_fork_with_the_state_of_its_place(saver: Any, is_open: bool) -> None:
    """Changed or copied where the thread stood once, with and without calls that were open there."""
    agent = scribe(saver)
    with anyio.fail_after(WAIT):
        if is_open:
            await agent.__aenter__()
        await agent.ainvoke(say("a"), AT)
        await agent.ainvoke(say("b"), AT)
        places = [place async for place in agent.aget_state_history(AT)]
        said = []
        for place in places:
            if place.next == ("tools",):  # the call is still to run there, and its line is not in the notebook
                await agent.aupdate_state(place.config, None, "__copy__")
                said.append(last(await agent.ainvoke(None, AT)))
            elif not place.next:
                await agent.aupdate_state(place.config, {"messages": [("ai", "well")]})
                said.append(last(await agent.ainvoke(say("x"), AT)))
        await agent.__aexit__(None, None, None)

    assert said == ["said a,b,x", "said a,b", "said a,x", "said a"]


async def test_each_thread_has_its_own_and_each_key_within_it(saver: Any) -> None:
    """With a key of your own, too: the same key in another thread is another actor."""
    notebook = child(Notebook, key=lambda call: call["args"]["line"][0], snapshots="journal", cap=1)
    agent = create_react_agent(ScriptedModel([reply], loop=True), [notebook], checkpointer=saver)
    other: Any = {"configurable": {"thread_id": "2"}}
    with anyio.fail_after(WAIT):
        async with agent:
            said = [
                last(await agent.ainvoke(say(text), where))
                for text, where in [("a1", AT), ("b1", AT), ("a2", other), ("a3", AT), ("b4", other), ("b5", AT)]
            ]

    assert said == ["said a1", "said b1", "said a2", "said a1,a3", "said b4", "said b1,b5"]
    assert set(Notebook.starts) == {"a", "b"}


class Album(Actor):
    """Pictures, which are large."""

    async def start(self) -> None:
        self.pictures: list[bytes] = []

    async def snapshot(self) -> list[bytes]:
        return self.pictures

    async def restore(self, snapshot: list[bytes]) -> None:
        self.pictures = snapshot

    @handler
    async def append(self, line: str) -> int:
        """Take a picture, or look at those that there are."""
        if line == "shoot":
            self.pictures.append(b"\x07" * 1_000_000)
        return sum(map(len, self.pictures))


def size(saver: Any) -> int:
    """Of all that a SQLite saver keeps, in bytes."""
    columns = {"checkpoints": "length(checkpoint) + length(metadata)", "writes": "length(value)"}
    return sum(saver.conn.execute(f"SELECT sum({sizes}) FROM {name}").fetchone()[0] for name, sizes in columns.items())


async def test_what_has_not_changed_is_not_stored_again(tmp_path: Path) -> None:
    """A large state is written once, and noted from then on, in however many turns, forks and copies."""
    with anyio.fail_after(WAIT):
        async with saver_of("sqlite", tmp_path / "db") as saver:
            agent = create_react_agent(
                ScriptedModel([reply], loop=True), [child(Album, snapshots="journal")], checkpointer=saver
            )
            await agent.ainvoke(say("shoot"), AT)
            first = size(saver)
            for _ in range(10):
                said = last(await agent.ainvoke(say("look"), AT))
            place = [place async for place in agent.aget_state_history(AT)][5]
            forked = last(await agent.ainvoke(say("look"), place.config))
            await agent.aupdate_state(AT, None, "__copy__")
            copied = last(await agent.ainvoke(say("look"), AT))
            end = size(saver)

    assert said == forked == copied == "said 1000000"
    assert 1_000_000 < first < 1_050_000
    assert end < first + 200_000


class Stubborn(Notebook):
    """Holds something that nobody can store, once."""

    async def snapshot(self) -> Any:
        return object() if self.lines == ["bad"] else self.lines


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_state_that_cannot_be_stored_is_an_error_that_names_the_actor(saver: Any, is_open: bool) -> None:
    """And the call does not count: it runs again on the state before it."""
    agent = create_react_agent(
        ScriptedModel([reply], loop=True), [child(Stubborn, snapshots="journal")], checkpointer=saver
    )
    with anyio.fail_after(WAIT):
        if is_open:
            await agent.__aenter__()
        with pytest.raises(SnapshotError, match=r"the actor Stubborn\['1'\] cannot be kept in the journal: .*object"):
            await agent.ainvoke(say("bad"), AT)
        state = await agent.aget_state(AT)
        said = last(await agent.ainvoke(say("a"), AT))
        await agent.__aexit__(None, None, None)

    assert "object" in str(state.tasks[0].error)
    assert said == "said a"


class Picky(Notebook):
    """Has a handler that fails when it has changed something."""

    fatal = (ZeroDivisionError,)

    @handler
    async def append(self, line: str) -> str:
        """Append a line; `slow` takes too long, `bad` fails, `worse` is the end."""
        self.lines.append(line)
        if line == "slow":
            await anyio.sleep_forever()
        if line == "bad":
            raise ValueError(line)
        if line == "worse":
            raise ZeroDivisionError
        return ",".join(self.lines)


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_call_that_failed_has_left_its_state_too_and_one_that_the_actor_died_of_has_not(
    saver: Any, is_open: bool
) -> None:
    """The actor lived on with what the first had done; it came back from the state before the second."""
    policies = {"append": CallPolicy(on_unknown="fail", timeout=0.5)}
    node = ToolNode([child(Picky, snapshots="journal")], handle_tool_errors=True, policies=policies)
    agent = create_react_agent(ScriptedModel([reply], loop=True), node, checkpointer=saver)
    with anyio.fail_after(WAIT):
        if is_open:
            await agent.__aenter__()
        said = [last(await agent.ainvoke(say(text), AT)) for text in ("a", "bad", "slow", "worse", "b")]
        await agent.__aexit__(None, None, None)

    assert said[0] == "said a"
    assert "bad" in said[1]
    assert "did not finish within its timeout" in said[2]
    assert "Whether it had its effect is unknown" in said[3]
    assert said[4].startswith("said a,bad,slow,b")


async def test_a_call_that_waits_for_a_person_leaves_the_others_with_their_effect(saver: Any) -> None:
    """The step is open, and what has finished in it is in the state when it goes on."""

    @tool
    def ask() -> str:
        """Ask."""
        return str(interrupt("well?"))

    script = [calls(("append", {"line": "a"}), "ask"), calls(("append", {"line": "b"})), "done"]
    notebook = child(Notebook, snapshots="journal")
    with anyio.fail_after(WAIT):
        agent = create_react_agent(ScriptedModel(script), [notebook, ask], checkpointer=saver)
        await agent.ainvoke(say("go"), AT)
        result = await agent.ainvoke(Command(resume="yes"), AT)
        await agent.aclose()

    assert [one.content for one in result["messages"] if one.type == "tool"] == ["a", "yes", "a,b"]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("when", ["open", "answered"])
async def test_calls_that_run_again_at_their_place_find_the_state_before_them(
    saver: Any, when: str, is_open: bool
) -> None:
    """A fork or a copy of a place does not have what its calls did, whether they are over or one still waits."""

    @tool
    def ask() -> str:
        """Ask."""
        return str(interrupt("well?"))

    def reply(sent: list[Any]) -> Any:
        return calls(("append", {"line": "a"}), "ask") if sent[-1].type == "human" else "done"

    def results(result: Any) -> list[str]:
        return [one.content for one in result["messages"] if one.type == "tool"]

    agent = create_react_agent(
        ScriptedModel([reply], loop=True), [child(Notebook, snapshots="journal"), ask], checkpointer=saver
    )
    with anyio.fail_after(WAIT):
        if is_open:
            await agent.__aenter__()
        await agent.ainvoke(say("go"), AT)
        found = []
        if when == "answered":
            await agent.ainvoke(Command(resume="yes"), AT)
            place = [one async for one in agent.aget_state_history(AT) if "tools" in one.next][-1]
            await agent.ainvoke(None, place.config)
            found.append(results(await agent.ainvoke(Command(resume="no"), AT)))
        place = [one async for one in agent.aget_state_history(AT) if "tools" in one.next][-1]
        await agent.aupdate_state(place.config, None, "__copy__")
        await agent.ainvoke(None, AT)
        found.append(results(await agent.ainvoke(Command(resume="no"), AT)))
        await agent.__aexit__(None, None, None)

    assert found == [["a", "no"]] * (1 + (when == "answered"))


async def test_a_deleted_thread_takes_its_states_along() -> None:
    """Also from under an actor that lives."""
    saver = InMemorySaver()
    agent = scribe(saver)
    with anyio.fail_after(WAIT):
        async with agent:
            await agent.ainvoke(say("a"), AT)
            saver.delete_thread("1")
            said = last(await agent.ainvoke(say("b"), AT))

    assert said == "said b"


async def test_a_thread_that_was_copied_has_the_states(tmp_path: Path) -> None:
    """As a database is copied: every row of a thread, under another name."""
    async with saver_of("sqlite", tmp_path / "db") as saver:
        agent = scribe(saver)
        with anyio.fail_after(WAIT):
            await agent.ainvoke(say("a"), AT)
            await agent.ainvoke(say("b"), AT)
            for table in ("checkpoints", "writes"):
                columns = [row[1] for row in saver.conn.execute(f"PRAGMA table_info({table})")]
                taken = ", ".join("'2'" if name == "thread_id" else name for name in columns)
                saver.conn.execute(f"INSERT INTO {table} SELECT {taken} FROM {table}")
            said = last(await agent.ainvoke(say("c"), {"configurable": {"thread_id": "2"}}))

    assert said == "said a,b,c"


async def test_a_state_that_somebody_has_deleted_is_missed(tmp_path: Path) -> None:
    """No empty actor in its place: the call fails, and says what is gone."""
    async with saver_of("sqlite", tmp_path / "db") as saver:
        agent = scribe(saver)
        with anyio.fail_after(WAIT):
            await agent.ainvoke(say("a"), AT)
            saver.conn.execute("DELETE FROM writes")
            said = last(await agent.ainvoke(say("b"), AT))

    assert "has lost the state of the actor 'Notebook'" in said


async def test_langgraphs_own_agent_hands_the_states_on() -> None:
    """It knows nothing of them; what it writes follows what ours has noted."""
    saver = InMemorySaver()
    with pytest.warns(LangGraphDeprecatedSinceV10):
        theirs: Any = langgraph_agent(ScriptedModel(["hello"]), [], checkpointer=saver)
    ours = scribe(saver)
    with anyio.fail_after(WAIT):
        await ours.ainvoke(say("a"), AT)
        await anyio.to_thread.run_sync(partial(theirs.invoke, say("hi"), AT))
        said = last(await ours.ainvoke(say("b"), AT))

    assert said == "said a,b"


@dataclass
class Page:
    """A page, of a type of the user's own."""

    text: str


class Paper(Notebook):
    """Holds pages."""

    async def snapshot(self) -> Any:
        return [Page(line) for line in self.lines]

    async def restore(self, snapshot: Any) -> None:
        self.lines = [page.text for page in snapshot]


async def test_nobody_but_the_actor_makes_objects_of_its_state(tmp_path: Path) -> None:
    """Who looks at the thread, or runs it without the actor, need not know the types in it; the actor's agent must."""
    url = f"sqlite:///{tmp_path / 'db'}"

    def agent(*types: type) -> Any:
        papers = [child(Paper, snapshots="journal")]
        return create_react_agent(ScriptedModel([reply], loop=True), papers, checkpointer=url, stored_types=types)

    plain = create_react_agent(ScriptedModel(["hello"]), [], checkpointer=url)
    with anyio.fail_after(WAIT):
        async with agent() as strict:
            with pytest.raises(SnapshotError, match=r"stored_types=\[Page\]"):
                await strict.ainvoke(say("a"), {"configurable": {"thread_id": "2"}})
        async with agent(Page) as allowed:
            await allowed.ainvoke(say("a"), AT)
            async with plain:
                await plain.ainvoke(say("hi"), AT)
            said = last(await allowed.ainvoke(say("b"), AT))
            with Threads(url) as threads:
                seen = await threads.read("1")
                places = await threads.history("1")

    assert said == "said a,b"
    assert seen is not None
    assert seen.turns == 3
    assert seen.other_keys == []
    assert len(places) > 5


async def test_from_sync_code_on_another_event_loop(tmp_path: Path) -> None:
    """The actor lives here, and the runs that ask it are in a thread, each on a loop of its own."""
    async with saver_of("sqlite", tmp_path / "db") as saver:
        agent = scribe(saver)
        with anyio.fail_after(WAIT):
            async with agent:
                early = None
                for text in "abc":
                    said = last(await anyio.to_thread.run_sync(agent.invoke, say(text), AT))
                    early = early or await agent.aget_state(AT)
                assert early is not None
                forked = last(await anyio.to_thread.run_sync(agent.invoke, say("d"), early.config))

    assert (said, forked) == ("said a,b,c", "said a,d")


@pytest.mark.parametrize("durability", ["exit", "sync", "async"])
async def test_whenever_a_run_stores_what_it_does(saver: Any, durability: Any) -> None:
    """With durability "exit" all of it at the end."""
    agent = scribe(saver)
    with anyio.fail_after(WAIT):
        said = [last(await agent.ainvoke(say(text), AT, durability=durability)) for text in "abc"]
        await agent.aclose()

    assert said == ["said a", "said a,b", "said a,b,c"]


async def test_two_runs_of_a_thread_do_not_share_an_actor() -> None:
    """Where nobody holds a thread, because nothing is stored before the end; in an open agent, one of them is told."""
    errors: list[ThreadBusyError] = []
    agent = scribe(InMemorySaver())

    async def run(text: str) -> None:
        try:
            await agent.ainvoke(say(text), AT, durability="exit")
        except ThreadBusyError as error:
            errors.append(error)

    with anyio.fail_after(WAIT):
        async with agent, anyio.create_task_group() as group:
            group.start_soon(run, "a")
            group.start_soon(run, "b")

    assert len(errors) == 1


class _Watched(InMemorySaver):
    """Keeps a copy of itself as it was after each write: what a process that is killed there leaves behind."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[dict[str, Any]] = []

    def put(self, *args: Any, **options: Any) -> Any:
        done = super().put(*args, **options)
        self._note()
        return done

    def put_writes(self, *args: Any, **options: Any) -> None:
        super().put_writes(*args, **options)
        self._note()

    def _note(self) -> None:
        parts = {"storage": self.storage, "writes": self.writes, "blobs": self.blobs}
        self.left.append({name: {key: deepcopy(value) for key, value in part.items()} for name, part in parts.items()})


@pytest.mark.parametrize("lines", [["a1"], ["a1", "b1"], ["b1", "c1", "a1", "d1"]])
async def test_a_process_that_is_killed_at_any_write_has_done_each_call_once(lines: list[str]) -> None:
    """A state and the result of its call are one write: if the call runs again, its line is there once."""
    script = [calls(*(("append", {"line": line}) for line in lines)), calls(("append", {"line": "a9"})), "done"]

    def reply(sent: list[Any]) -> Any:
        return script[sum(message.type == "ai" for message in sent)]

    def agent(saver: Any) -> Any:
        notebook = child(Notebook, key=lambda call: call["args"]["line"][0], snapshots="journal")
        return create_react_agent(ScriptedModel([reply], loop=True), [notebook], checkpointer=saver, on_unknown="rerun")

    watched, killed = _Watched(), 0
    with anyio.fail_after(WAIT):
        await agent(watched).ainvoke(say("go"), AT, durability="sync")
        for left in watched.left:
            saver = InMemorySaver()
            for name, part in left.items():
                getattr(saver, name).update(part)
            again = agent(saver)
            if not (await again.aget_state(AT)).next:
                continue  # nothing to go on with: it had not begun, or was over
            killed += 1
            result = await again.ainvoke(None, AT)
            results = [one.content for one in result["messages"] if one.type == "tool"]
            assert results == [*lines, "a1,a9"]

    assert killed > 5
