"""Promise 10: the stored journal of a thread, with every checkpointer, and its behaviour after errors."""

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.errors import InvalidUpdateError
from langgraph.types import Command

from callboard import AgentState, StorageError, create_react_agent, tool_call
from callboard.testing import Recorder, ScriptedModel, calls

from ._graphs import asking
from ._savers import MORE, QUESTION, aforge, complaint, saver_of, say, scripted, shape

UNANSWERED = (
    "Error: this call has no result. It was interrupted before it finished, and whether it had any effect is "
    "unknown. Find out before calling the tool again."
)

pytestmark = pytest.mark.real_clock

WAIT = 20


async def _history(agent: Any, config: Any) -> None:
    assert [snapshot async for snapshot in agent.aget_state_history(config)]


USES: list[Callable[[Any, Any], Any]] = [
    lambda agent, config: agent.ainvoke(MORE, config),
    lambda agent, config: agent.aupdate_state(config, MORE),
    lambda agent, config: agent.aget_state(config),
    _history,
]


def at(thread_id: str = "1", **more_keys: str) -> Any:
    return {"configurable": {"thread_id": thread_id, **more_keys}}


class MoodState(AgentState):
    mood: Any


class Unheard:
    """A value that no checkpointer can store."""


MOODS = {"unheard": Unheard(), "lock": threading.Lock()}


@tool
async def feel(query: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
    """Set the mood; some values cannot be stored by any checkpointer."""
    mood = MOODS.get(query, query)
    return Command(update={"mood": mood, "messages": [ToolMessage(query, tool_call_id=tool_call_id)]})


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_what_the_run_goes_on_with_is_stored_before_but_for_exit(durability: Any) -> None:
    memory = InMemorySaver()
    stored_texts: list[list[str]] = []

    def look(messages: Any) -> Any:
        checkpoint_tuple = memory.get_tuple(at())
        stored = str(checkpoint_tuple.pending_writes) if checkpoint_tuple else ""
        stored_texts.append([message.content for message in messages if message.content and message.content in stored])
        return (
            "done"
            if len(stored_texts) == 2
            else calls(("work", {"query": "result a"}), ("work", {"query": "result b"}))
        )

    agent = scripted([look], [Recorder().tool("work")], loop=True, checkpointer=memory)
    await agent.ainvoke(say("the question"), at(), durability=durability)
    state = await agent.aget_state(at())
    assert shape(state.values)[-1] == "ai:done"
    if durability == "sync":
        assert stored_texts == [["the question"], ["the question", "result a", "result b"]]
    if durability == "exit":
        assert stored_texts == [[], []]


@pytest.fixture(params=["sqlite", pytest.param("aiosqlite", marks=pytest.mark.exhaustive)])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Any, Callable[[], int]]]:
    """A checkpointer on disk, and a function that returns its size in bytes."""

    def size() -> int:
        with closing(sqlite3.connect(tmp_path / "db")) as reader:
            sums = [
                "select coalesce(sum(length(checkpoint) + length(metadata)), 0) from checkpoints",
                "select coalesce(sum(length(value)), 0) from writes",
            ]
            return sum(reader.execute(query).fetchone()[0] for query in sums)

    async with saver_of(request.param, tmp_path / "db") as opened_saver:
        yield opened_saver, size


TEXT = "word " * 100


@pytest.mark.backends("asyncio", "trio")
async def test_storage_grows_with_the_number_of_turns(database: tuple[Any, Callable[[], int]]) -> None:
    """The growth is linear and not quadratic, because only the last checkpoint has its own messages."""
    saver, size = database
    agent = scripted([TEXT], [], loop=True, checkpointer=saver)
    sizes = {}
    for turn in range(1, 25):
        await agent.ainvoke(say(TEXT), at())
        if turn in (12, 24):
            sizes[turn] = size()

    conversation = 24 * 2 * len(TEXT)
    assert sizes[24] / sizes[12] < 2.2
    assert sizes[24] < 4 * conversation


async def test_an_old_place_of_a_long_thread_is_read_without_reading_the_thread_again_and_again() -> None:
    """Reading the history of n turns takes about n reads, and not n squared."""

    class Counting(InMemorySaver):
        reads = 0

        def get_tuple(self, config: Any) -> Any:
            self.reads += 1
            return super().get_tuple(config)

    saver = Counting()
    agent = scripted(["hi"], [], loop=True, checkpointer=saver)
    for _ in range(20):
        await agent.ainvoke(QUESTION, at())
    saver.reads = 0
    snapshots = [snapshot async for snapshot in agent.aget_state_history(at())]
    assert len(snapshots) >= 40
    assert saver.reads < 70


async def test_to_go_on_with_a_thread_each_of_its_messages_is_read_once() -> None:
    """The read that verifies the hold does not read the messages again."""
    codes: list[int] = []
    make = JsonPlusSerializer()._unpack_ext_hook

    def counting(code: int, data: bytes) -> object:
        codes.append(code)
        return make(code, data)

    saver = InMemorySaver(serde=JsonPlusSerializer(__unpack_ext_hook__=counting))
    agent = scripted(["hi"], [], loop=True, checkpointer=saver)
    for _ in range(10):
        await agent.ainvoke(QUESTION, at())
    codes.clear()
    result = await agent.ainvoke(QUESTION, at())
    assert len(result["messages"]) == 22
    assert len(codes) == 20


class Odd:
    """A value that LangGraph's serializer does not know."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)

    __hash__ = None  # type: ignore[assignment]


async def test_what_has_to_be_pickled_is_kept_like_anything_else() -> None:
    saver = InMemorySaver(serde=JsonPlusSerializer(pickle_fallback=True))

    async def work(query: str = "") -> Any:
        """Work."""
        return ToolMessage("done", tool_call_id="1", artifact=Odd())

    replies = [calls(tool_call("work", "1"), tool_call("stop", "2")), "one", "two"]
    agent = scripted(replies, [work, asking("stop?", "stop")], checkpointer=saver)
    await agent.ainvoke(QUESTION, at())
    await agent.ainvoke(Command(resume="go on"), at())
    result = await agent.ainvoke(QUESTION, at())
    assert [message.artifact for message in result["messages"] if isinstance(message, ToolMessage)] == [Odd(), None]


@pytest.mark.parametrize("ending", ["cancelled", "stream closed"])
async def test_after_a_cancelled_run_the_next_message_finds_what_had_finished(saver: Any, ending: str) -> None:
    recorder = Recorder()
    tools = [recorder.tool("work"), recorder.tool("stuck", hang=True)]
    model = ScriptedModel([calls(("work", {"query": "a"}), "stuck", ("work", {"query": "b"})), "fine"])
    agent = create_react_agent(model, tools, checkpointer=saver)
    finished = anyio.Event()

    async def run() -> None:
        results = 0
        async with aclosing(agent.astream(QUESTION, at(), stream_mode="updates")) as chunks:
            async for chunk in chunks:
                results += "tools" in chunk
                if results == 2:
                    finished.set()
                    if ending == "stream closed":
                        return

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await finished.wait()
        if ending == "cancelled":
            group.cancel_scope.cancel()
    assert recorder.running == 0
    state = await agent.aget_state(at())
    assert state.next == ("tools",)
    result = await agent.ainvoke(MORE, at())
    assert shape(model.requests[-1]) == ["human:go", "ai:", "tool:a", f"tool:{UNANSWERED}", "tool:b", "human:more"]
    assert complaint(result["messages"]) is None
    assert recorder.count("started", "work") == 2


class Failing(InMemorySaver):
    """A checkpointer that fails once on request.

    Attributes:
        at: predicate that decides for each write whether it fails.
        stores: whether a failing write is stored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fails_at: Callable[[str], bool] | None = None
        self.stores = False

    def _meets(self, operation: str) -> bool:
        if self.fails_at is None or not self.fails_at(operation):
            return False
        self.fails_at = None
        return True

    def put(self, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        if self._meets(f"checkpoint {checkpoint}"):
            raise OSError("the disk is full")
        return super().put(config, checkpoint, metadata, versions)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        fails = self._meets(f"writes {writes}")
        if not fails or self.stores:
            super().put_writes(config, writes, task_id, task_path)
        if fails:
            raise OSError("the disk is full")


def _on_task_of(word: str) -> Callable[[str], bool]:
    return lambda operation: operation.startswith("writes") and word in operation


STORES = pytest.mark.parametrize("stores", [False, True], ids=["lost", "stored"])


@STORES
@pytest.mark.parametrize(
    "task_word", ["'kind': 'step', 'order': ['agent']", "content='a'", "content='b'", "'order': ['call"]
)
async def test_a_checkpointer_that_fails_once_loses_nothing(task_word: str, stores: bool) -> None:
    saver, recorder = Failing(), Recorder()
    saver.stores = stores
    model = ScriptedModel([calls(("work", {"query": "a"}), ("work", {"query": "b"})), "done", "again"])
    agent = create_react_agent(model, [recorder.tool("work")], checkpointer=saver)
    saver.fails_at = _on_task_of(task_word)
    with pytest.raises(OSError, match="the disk is full"):
        await agent.ainvoke(QUESTION, at())
    result = await agent.ainvoke(None, at())
    later = await agent.ainvoke(MORE, at())
    assert shape(result) == ["human:go", "ai:", "tool:a", "tool:b", "ai:done"]
    assert shape(later)[-2:] == ["human:more", "ai:again"]
    assert recorder.count("finished", query="a") == 1
    assert len(model.requests) == 3


class Slow(SqliteSaver):
    """A checkpointer that stores the result of `slow`, and returns or fails on request.

    Attributes:
        writing: set when the result of `slow` has been stored.
        may_end: lets that write return.
        fails: whether the write raises when it returns.
    """

    writing: threading.Event
    may_end: threading.Event
    fails = False

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        if "content='slow'" in str(writes) and not self.writing.is_set():
            self.writing.set()
            self.may_end.wait(WAIT)
            if self.fails:
                raise OSError("the connection is gone")


class BesideSlow:
    """Tools of which `slow` ends first; `work` ends while its result is being stored."""

    def __init__(self, saver: Slow) -> None:
        self.ran: list[str] = []
        self._saver = saver
        saver.writing, saver.may_end = threading.Event(), threading.Event()

    async def _end(self, name: str) -> str:
        self.ran.append(name)
        if name != "slow":
            await anyio.to_thread.run_sync(self._saver.writing.wait, WAIT)
        return name

    def tools(self) -> list[Any]:
        @tool
        async def slow() -> str:
            """End first."""
            return await self._end("slow")

        @tool
        async def work() -> str:
            """Work."""
            return await self._end("work")

        return [slow, work]

    async def run(self, agent: Any) -> None:
        """Run the agent, and let the write of `slow` end when the other call has finished."""
        async with aclosing(agent.astream(QUESTION, at(), stream_mode="updates")) as chunks:
            async for chunk in chunks:
                if "tools" in chunk:
                    self._saver.may_end.set()


async def test_what_finishes_while_a_write_fails_is_stored_with_the_next(tmp_path: Path) -> None:
    """A write that was stored but reported as failed is repeated, and must not hide results that finished meanwhile."""
    model = ScriptedModel([calls("slow", "work"), "done"])
    async with saver_of("sqlite", tmp_path / "db", sync=Slow) as saver:
        scenario = BesideSlow(saver)
        saver.fails = True
        agent = create_react_agent(model, scenario.tools(), checkpointer=saver)
        with pytest.raises(OSError, match="the connection is gone"):
            await scenario.run(agent)
        result = await agent.ainvoke(None, at())
    assert shape(result) == ["human:go", "ai:", "tool:slow", "tool:work", "ai:done"]
    assert sorted(scenario.ran) == ["slow", "work"]


@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_a_checkpoint_that_could_not_be_written_is_made_up_for(durability: Any) -> None:
    saver = Failing()
    agent = scripted(["one", "two", "three"], [], checkpointer=saver)
    await agent.ainvoke(QUESTION, at())
    saver.fails_at = lambda operation: operation.startswith("checkpoint") and "two" in operation
    with pytest.raises(OSError, match="the disk is full"):
        await agent.ainvoke(MORE, at(), durability=durability)
    state = await agent.aget_state(at())
    result = await agent.ainvoke(MORE, at())

    if durability == "async":
        assert shape(state.values) == ["human:go", "ai:one", "human:more", "ai:two"]
        assert shape(result)[4:] == ["human:more", "ai:three"]
    assert complaint(result["messages"]) is None


async def test_a_result_that_cannot_be_stored_costs_no_other_result(saver: Any) -> None:
    """The run goes on: the model reads which part of the result cannot be stored, and the call does not run again."""
    recorder = Recorder()
    model = ScriptedModel(
        ["one", calls(("work", {"query": "a"}), ("feel", {"query": "unheard"}), ("work", {"query": "b"})), "fine"]
    )
    agent = create_react_agent(model, [recorder.tool("work"), feel], checkpointer=saver, state_schema=MoodState)
    await agent.ainvoke(QUESTION, at())
    result = await agent.ainvoke(MORE, at())

    first, lost, second = [message for message in result["messages"] if message.type == "tool"]
    assert (first.text, second.text, lost.status) == ("a", "b", "error")
    assert "its result is lost, because the database cannot store it: update['mood'] is" in lost.text
    assert "mood" not in result
    assert recorder.count("finished") == 2
    assert shape(result)[-1] == "ai:fine"
    assert complaint(result["messages"]) is None


async def test_a_result_that_cannot_be_copied_is_an_error_and_costs_no_finished_result(saver: Any) -> None:
    """Commands are copied, as in LangGraph. Results of the other calls are stored, and the thread goes on."""
    recorder = Recorder()
    requested = ("work", {"query": "a"}), ("feel", {"query": "lock"}), ("work", {"query": "b"})
    agent = create_react_agent(
        ScriptedModel(["one", calls(*requested), "fine"]),
        [recorder.tool("work"), feel],
        checkpointer=saver,
        state_schema=MoodState,
    )
    await agent.ainvoke(QUESTION, at())
    with pytest.raises(TypeError, match="pickle"):
        await agent.ainvoke(MORE, at())
    finished = recorder.count("finished")
    result = await agent.ainvoke(MORE, at())

    results = [message.content for message in result["messages"] if message.type == "tool"]
    assert sum(content != UNANSWERED for content in results) == finished
    assert shape(result)[-1] == "ai:fine"
    assert complaint(result["messages"]) is None


async def test_writes_that_contradict_each_other_do_not_make_a_thread_unusable(saver: Any) -> None:
    model = ScriptedModel([calls(("feel", {"query": "good"}), ("feel", {"query": "bad"})), "fine"])
    agent = create_react_agent(model, [feel], checkpointer=saver, state_schema=MoodState)
    with pytest.raises(InvalidUpdateError, match="At key 'mood': Can receive only one value per step"):
        await agent.ainvoke(QUESTION, at())
    result = await agent.ainvoke(MORE, at())
    assert shape(result)[-2:] == ["human:more", "ai:fine"]
    assert complaint(result["messages"]) is None


async def test_a_step_that_was_not_ended_is_seen_to_go_on() -> None:
    """All tasks have finished but the step is not stored as ended, so `next` must name it."""

    class Dying(InMemorySaver):
        """Stores nothing after the tools have ended, as if the process had been killed."""

        dead = False

        def put(self, *args: Any) -> Any:
            return None if self.dead else super().put(*args)

        def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            self.dead = self.dead or "'order': ['call" in str(writes)
            if not self.dead:
                super().put_writes(config, writes, task_id, task_path)

    saver, recorder = Dying(), Recorder()
    model = ScriptedModel([calls(("work", {"query": "a"})), "lost", "done"])
    agent = create_react_agent(model, [recorder.tool("work")], checkpointer=saver)
    await agent.ainvoke(QUESTION, at(), durability="sync")  # with "async", the result shares the lost write
    state = await agent.aget_state(at())
    saver.dead = False
    result = await agent.ainvoke(None, at())
    assert shape(result) == ["human:go", "ai:", "tool:a", "ai:done"]
    assert recorder.count("started") == 1
    assert state.next


async def test_a_run_without_a_thread_id_says_how_to_name_one(saver: Any) -> None:
    agent = scripted(["hi"], [], checkpointer=saver)

    for use in USES:
        with pytest.raises(ValueError, match="thread_id"):
            await use(agent, {})


async def test_a_thread_id_that_is_a_number_is_the_same_as_its_text(saver: Any) -> None:
    agent = scripted(["hi"], [], checkpointer=saver)
    await agent.ainvoke(QUESTION, {"configurable": {"thread_id": 1}})
    state = await agent.aget_state(at("1"))
    assert shape(state.values) == ["human:go", "ai:hi"]


@pytest.mark.parametrize("new", [True, False], ids=["of a new thread", "of a known thread"])
async def test_an_unknown_checkpoint_is_an_error(saver: Any, new: bool) -> None:
    """LangGraph would start an empty conversation without an error."""
    unknown = "1f0c5b2e-0000-6000-8000-000000000000"
    agent = scripted(["hi", "oh"], [], checkpointer=saver)

    if not new:
        await agent.ainvoke(QUESTION, at())
    for use in USES[:3]:
        with pytest.raises(ValueError, match=unknown):
            await use(agent, at(checkpoint_id=unknown))


async def test_without_a_checkpointer_there_is_no_state_to_look_at() -> None:
    agent = scripted(["hi"], [])

    with pytest.raises(ValueError, match="No checkpointer set"):
        await agent.aget_state(at())


@pytest.mark.parametrize(
    "entry",
    [{"kind": "something of a later version"}, {"kind": "task"}, {}, "text"],
    ids=["newer", "cut", "empty", "text"],
)
async def test_entries_that_are_not_understood_are_an_error_and_nothing_is_lost(saver: Any, entry: Any) -> None:
    """Ignoring entries of a newer callboard, or damaged ones, would lose data."""
    agent = scripted(["hi", "oh"], [], checkpointer=saver)

    await agent.ainvoke(QUESTION, at())
    state = await agent.aget_state(at())
    await aforge(saver, state.config, entry)
    for use in USES:
        with pytest.raises(StorageError, match="entry"):
            await use(agent, at())
