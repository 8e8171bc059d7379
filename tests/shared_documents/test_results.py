"""`Cache(shared=...)`: of identical calls in all processes one runs, and its result is for all."""

import warnings
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from tests.helpers import make

from callboard import CallboardWarning, CallEvent, CallPolicy, StorageError, ToolNode, observe
from callboard.documents import SharedDocuments
from callboard.middleware import Cache
from callboard.middleware._result_documents import json_of, message_of
from callboard.testing import tool_call

from ._world import LEASE, WAIT, MemoryWorld, World, noted, until

pytestmark = pytest.mark.real_clock


class Tool:
    """A tool in several processes; each run has a number."""

    def __init__(self) -> None:
        self.runs = 0
        self.gate: anyio.Event | None = None
        self.error: Exception | None = None

    async def work(self, n: int = 0) -> str:
        """Work."""
        self.runs += 1
        run, gate = self.runs, self.gate
        if gate is not None:
            await gate.wait()
        if self.error is not None:
            raise self.error
        return f"run {run}"

    def process(self, store: SharedDocuments, policy: CallPolicy | None = None, **options: Any) -> "Process":
        options = {"key": by_number, **options}
        return Process(make(self.work), Cache({"work"}, shared=store, **options), policy)


def by_number(request: Any) -> int:
    return int(request.tool_call["args"].get("n", 0))


class Process:
    """A node with a cache."""

    def __init__(self, tool: BaseTool, cache: Cache, policy: CallPolicy | None = None) -> None:
        self.cache = cache
        policies = {} if policy is None else {"work": policy}
        self.node = ToolNode([tool], middleware=[cache], handle_tool_errors=True, policies=policies)
        self.answers: list[ToolMessage] = []

    async def call(self, n: int = 0, call_id: str = "1") -> Any:
        """What the model reads."""
        with anyio.fail_after(WAIT):
            result = await self.node.ainvoke([tool_call("work", call_id, n=n)])
        self.answers += result["messages"]
        return self.answers[-1].content


async def test_a_result_is_for_all_processes(world: World) -> None:
    """Each call has a message of its own."""
    tool = Tool()
    one, other = (tool.process(world.store()) for _ in range(2))

    assert await one.call(call_id="a") == "run 1"
    await landed(world)
    assert await other.call(call_id="b") == "run 1"
    assert await one.call(call_id="c") == "run 1"

    assert [message.tool_call_id for message in other.answers + one.answers] == ["b", "a", "c"]
    assert await other.call(n=1) == "run 2"
    assert tool.runs == 2


async def test_of_identical_calls_in_all_processes_one_runs(world: World) -> None:
    """The others wait for what it finds out."""
    tool = Tool()
    tool.gate = anyio.Event()
    processes = [tool.process(world.store(lease=60.0)) for _ in range(4)]  # nobody looks again by himself
    events: list[CallEvent] = []

    with observe(events.append):
        async with anyio.create_task_group() as group:
            for process in processes:
                for _ in range(3):
                    group.start_soon(process.call)
            await world.pass_time(0.3)
            assert tool.runs == 1
            tool.gate.set()

    assert [message.content for process in processes for message in process.answers] == ["run 1"] * 12
    assert sorted(noted(events)) == ["cache_miss"] + ["cache_shared"] * 11


async def test_a_leader_that_lives_is_waited_for_longer_than_a_lease(world: World) -> None:
    """It says that it lives, as long as it does."""
    tool = Tool()
    tool.gate = anyio.Event()
    one, other = (tool.process(world.store()) for _ in range(2))

    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 1)
        group.start_soon(other.call)
        await world.pass_time(3 * LEASE)
        assert tool.runs == 1
        tool.gate.set()

    assert other.answers[0].content == "run 1"


async def test_when_the_leader_is_silent_for_a_lease_the_next_in_line_runs(world: World) -> None:
    """And what the first one says later is not what is kept."""
    tool = Tool()
    first = tool.gate = anyio.Event()
    lost = world.store()
    slow, heir, third = tool.process(lost), tool.process(world.store()), tool.process(world.store())

    async with anyio.create_task_group() as group:
        group.start_soon(slow.call)
        await until(lambda: tool.runs == 1)
        tool.gate = second = anyio.Event()
        group.start_soon(heir.call)
        group.start_soon(third.call)
        await world.pass_time(0.05)
        world.stand_still(lost, 2.5 * LEASE)
        await until(lambda: tool.runs == 2)
        first.set()
        await until(lambda: len(slow.answers) == 1)
        await world.pass_time(2 * LEASE)  # what it said has been heard by now
        assert third.answers == []
        second.set()

    assert slow.answers[0].content == "run 1"
    assert [one.answers[0].content for one in (heir, third)] == ["run 2"] * 2
    await landed(world)
    assert await tool.process(world.store()).call() == "run 2"


async def test_a_cancelled_leader_hands_over_at_once(world: World) -> None:
    """Nobody waits for its lease."""
    tool = Tool()
    tool.gate = anyio.Event()
    one, other = (tool.process(world.store(lease=20.0)) for _ in range(2))

    async with anyio.create_task_group() as waiting:
        async with anyio.create_task_group() as leading:
            leading.start_soon(one.call)
            await until(lambda: tool.runs == 1)
            waiting.start_soon(other.call)
            await world.pass_time(0.1)
            tool.gate = None
            leading.cancel_scope.cancel()
        await until(lambda: len(other.answers) == 1)

    assert other.answers[0].content == "run 2"


async def test_a_call_that_is_cancelled_before_it_knows_that_it_leads_hands_over_at_once() -> None:
    """The answer of the store is on its way; nobody else knows that it leads no more."""
    world, tool = MemoryWorld(), Tool()
    store = world.store(lease=60.0)
    one, other = tool.process(store), tool.process(world.store(lease=60.0))
    store.held = []
    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: bool(store.held))
        group.cancel_scope.cancel()

    assert await other.call() == "run 1"


async def test_a_leader_without_end_is_not_trusted() -> None:
    """Somebody has written that he finds it out, and that for ever; no call waits for him longer than for others."""
    world, tool = MemoryWorld(), Tool()
    tool.gate = anyio.Event()
    one, other = (tool.process(world.store()) for _ in range(2))
    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 1)
        [(name, (text, _, most))] = world.server.texts.items()
        world.server.texts[name] = text, float("inf"), most
        tool.gate = None
        assert await other.call() == "run 2"
        group.cancel_scope.cancel()


async def test_an_error_is_not_shared_and_those_who_waited_find_out_for_themselves(world: World) -> None:
    """An exception cannot leave its process; to run one after another would take as long as all together."""
    tool = Tool()
    tool.gate, tool.error = anyio.Event(), OSError("down")
    processes = [tool.process(world.store(lease=20.0)) for _ in range(3)]

    async with anyio.create_task_group() as group:
        for process in processes:
            group.start_soon(process.call)
        await until(lambda: tool.runs == 1)
        await world.pass_time(0.1)
        gate, tool.gate = tool.gate, anyio.Event()
        gate.set()
        await until(lambda: tool.runs == 3)
        tool.gate.set()

    assert all("down" in str(process.answers[0].content) for process in processes)
    tool.error = tool.gate = None
    assert await processes[0].call() == "run 4"


async def test_a_message_of_failure_is_for_those_who_waited_and_not_kept(world: World) -> None:
    """As in one process."""
    runs: list[int] = []
    gate = anyio.Event()

    async def work(n: int = 0) -> ToolMessage:
        runs.append(n)
        await gate.wait()
        return ToolMessage("no luck", tool_call_id="1", status="error")

    processes = [Process(make(work), Cache({"work"}, shared=world.store(lease=20.0), key=by_number)) for _ in range(2)]
    async with anyio.create_task_group() as group:
        for process in processes:
            group.start_soon(process.call)
        await until(lambda: len(runs) == 1)
        await world.pass_time(0.1)
        gate.set()

    assert [process.answers[0].content for process in processes] == ["no luck"] * 2
    assert len(runs) == 1
    await processes[0].call()
    assert len(runs) == 2


async def test_a_result_is_good_for_its_ttl_by_the_clock_of_the_server(world: World) -> None:
    """Then somebody runs again."""
    tool = Tool()
    one, other = (tool.process(world.store(), ttl=0.4) for _ in range(2))
    await one.call()
    await landed(world)
    assert await other.call() == "run 1"

    await world.pass_time(0.45)

    assert await other.call() == "run 2"


@pytest.mark.parametrize("how", ["tool", "key", "clear"])
async def test_what_is_forgotten_is_forgotten_by_all(world: World, how: str) -> None:
    """Other calls of this process that come later, too."""
    tool = Tool()
    one, other = (tool.process(world.store()) for _ in range(2))
    await one.call(n=7)
    await landed(world)
    assert await other.call(n=7) == "run 1"

    _forget(one.cache, how)

    assert await one.call(n=7) == "run 2"
    await landed(world)
    assert await other.call(n=7) == "run 2"


def _forget(cache: Cache, how: str) -> None:
    if how == "clear":
        cache.clear()
    elif how == "key":
        cache.invalidate("work", key=7)
    else:
        cache.invalidate("work")


@pytest.mark.parametrize("how", ["tool", "key", "clear"])
async def test_what_was_in_flight_when_it_was_forgotten_is_not_kept(world: World, how: str) -> None:
    """It may have seen what was before; whoever waited for it in another process runs."""
    tool = Tool()
    gate = tool.gate = anyio.Event()
    one, other = (tool.process(world.store()) for _ in range(2))

    async with anyio.create_task_group() as group:
        group.start_soon(one.call, 7)
        await until(lambda: tool.runs == 1)
        group.start_soon(other.call, 7)
        await world.pass_time(0.1)
        tool.gate = None
        _forget(other.cache, how)
        await until(lambda: len(other.answers) == 1)
        gate.set()

    assert (one.answers[0].content, other.answers[0].content) == ("run 1", "run 2")
    await landed(world)
    assert await tool.process(world.store()).call(7) == "run 2"


async def test_a_call_waits_no_longer_than_its_budget(world: World) -> None:
    """Whoever leads elsewhere may take as long as he likes."""
    tool = Tool()
    tool.gate = anyio.Event()
    one = tool.process(world.store())
    other = tool.process(world.store(), CallPolicy(budget=0.2))

    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 1)
        await other.call()
        assert tool.runs == 1
        tool.gate.set()

    assert other.answers[0].status == "error"
    assert one.answers[0].content == "run 1"


async def test_of_so_many_results_the_oldest_go(world: World) -> None:
    """For all processes together, and whoever stores one more."""
    tool = Tool()
    one, other = (tool.process(world.store(), size=3) for _ in range(2))
    for n in range(5):
        await (one, other)[n % 2].call(n)
        await world.pass_time(0.02)

    found = [await one.call(n) for n in (4, 3, 2, 0)]

    assert found == ["run 5", "run 4", "run 3", "run 6"]


async def test_results_of_another_name_or_version_are_not_taken(world: World) -> None:
    """Who deploys a tool that does something else says so."""
    tool = Tool()
    store = world.store()
    await tool.process(store, version=1).call()
    await landed(world)
    others = [tool.process(store, version=2), tool.process(store, version=1, name="other"), tool.process(store)]

    assert [await other.call() for other in others] == ["run 2", "run 3", "run 4"]
    assert await tool.process(world.store(), version=1).call() == "run 1"


async def plain(n: int = 0) -> str:
    """A function of a module has nothing but its arguments."""
    _plain_runs.append(n)
    return f"{n}"


_plain_runs: list[int] = []


async def test_without_a_key_the_arguments_are_what_a_function_depends_on(world: World) -> None:
    """It does the same in every process that runs the program."""
    _plain_runs.clear()
    tools = [StructuredTool.from_function(coroutine=plain, name="work", description="Work.") for _ in range(2)]
    processes = [Process(tool, Cache({"work"}, shared=world.store())) for tool in tools]

    assert [await process.call(5) for process in processes] == ["5"] * 2
    await landed(world)
    assert [await process.call(5) for process in processes] == ["5"] * 2
    assert _plain_runs == [5]
    processes[1].cache.invalidate("work", {"n": 5})
    assert await processes[1].call(5) == "5"
    assert _plain_runs == [5, 5]


async def test_a_tool_that_is_more_than_a_function_is_shared_with_a_key_only() -> None:
    """It may have been made for one user, and another process has one of its name for another user."""
    world, tool = MemoryWorld(), Tool()
    processes = [tool.process(world.store(), key=None) for _ in range(2)]
    events: list[CallEvent] = []

    with observe(events.append), pytest.warns(CallboardWarning, match=r"shares? results of the tool 'work'.*key=") as _:
        found = [await process.call() for process in processes]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = [await process.call() for process in processes]

    assert found == ["run 1", "run 2"]
    assert again == ["run 3", "run 4"]
    assert noted(events) == ["cache_skipped", "cache_miss"] * 2
    assert not world.server.texts


async def test_a_result_that_json_would_change_stays_in_its_process() -> None:
    """Whoever waited runs for himself; the program goes on as before."""
    world = MemoryWorld()
    runs: list[int] = []

    async def work(n: int = 0) -> tuple[str, object]:
        runs.append(n)
        return "text", {"pair": (1, 2)}

    events: list[CallEvent] = []
    tool = StructuredTool.from_function(
        coroutine=work, name="work", description="Work.", response_format="content_and_artifact"
    )
    processes = [Process(tool, Cache({"work"}, shared=world.store(), key=by_number)) for _ in range(2)]
    with observe(events.append):
        for process in processes:
            await process.call()

    assert len(runs) == 2
    assert noted(events) == ["cache_miss", "cache_skipped"] * 2
    assert processes[1].answers[0].artifact == {"pair": (1, 2)}


async def test_a_result_that_is_too_large_stays_in_its_process() -> None:
    """A server is no place for it; `largest=` says how large is too large."""
    world = MemoryWorld()
    runs: list[int] = []

    async def work(n: int = 0) -> str:
        runs.append(n)
        return "x" * 200_000

    events: list[CallEvent] = []
    processes = [Process(make(work), Cache({"work"}, shared=world.store(), key=by_number)) for _ in range(2)]
    with observe(events.append):
        for process in processes:
            await process.call()

    assert len(runs) == 2
    assert [event.facts.get("reason") for event in events if event.what == "cache_skipped"] == ["cannot be shared"] * 2


async def test_a_key_that_is_no_json_stays_in_its_process() -> None:
    """Nobody else could know it."""
    world, tool, key = MemoryWorld(), Tool(), object()
    process = tool.process(world.store(), key=lambda _: key)
    events: list[CallEvent] = []

    with observe(events.append):
        await process.call()

    assert noted(events) == ["cache_skipped", "cache_miss"]
    assert not world.server.texts


async def test_neither_arguments_nor_names_are_stored() -> None:
    """What is not the result is a digest."""
    world, tool = MemoryWorld(), Tool()
    process = tool.process(world.store(), key=lambda request: f"secret {request.tool_call['args']['n']}")

    await process.call(n=5, call_id="private")

    assert "run 1" in repr(world.server.texts)
    assert all(word not in repr([world.server.texts, world.server.marks]) for word in ("secret", "private", "'work'"))


async def test_calls_run_while_the_store_is_away_and_keep_nothing() -> None:
    """What others forget meanwhile could not be heard; identical calls of a process still run once."""
    world, tool = MemoryWorld(), Tool()
    store = world.store()
    process = tool.process(store)
    store.is_away = True
    tool.gate = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(process.call)
        group.start_soon(process.call)
        await until(lambda: tool.runs == 1)
        tool.gate.set()

    assert await process.call() == "run 2"
    store.back()
    assert await process.call() == "run 3"
    assert await process.call() == "run 3"


async def test_calls_are_refused_by_choice_while_the_store_is_away() -> None:
    """For those whose tool must not be called twice."""
    tool = Tool()
    store = MemoryWorld().store(away="refuse")
    store.is_away = True
    process = tool.process(store)

    assert "was not started: the store is away" in await process.call()
    assert tool.runs == 0


async def test_a_store_that_cannot_be_used_is_an_error_of_the_call() -> None:
    """A wrong password does not become right."""
    tool = Tool()
    store = MemoryWorld().store()
    store.failure = StorageError("redis://host", "refuses us.")
    node = ToolNode([make(tool.work)], middleware=[Cache({"work"}, shared=store, key=by_number)])

    with pytest.raises(StorageError, match="refuses us"):
        await node.ainvoke([tool_call("work", "1")])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
OTHERS = st.binary() | st.tuples(st.integers()) | st.sets(st.integers()) | st.dictionaries(st.integers(), st.integers())


@given(content=st.text() | st.lists(st.text() | st.dictionaries(st.text(), JSON), max_size=3), artifact=JSON | OTHERS)
def test_what_is_stored_comes_back_as_it_was_or_is_not_stored(content: Any, artifact: Any) -> None:
    """A cache may not change results."""
    message = ToolMessage(content, tool_call_id="1", artifact=artifact, name="work", additional_kwargs={"a": [1]})

    text = json_of(message)

    if text is not None:
        found = message_of(text)
        assert found is not None
        assert found.model_copy(update={"tool_call_id": "1"}) == message
        assert repr(found.artifact) == repr(artifact)
        assert repr(found.content) == repr(message.content)


class Subclass(ToolMessage):
    """A message that is more than one."""


@pytest.mark.parametrize("artifact", [True, 1, 1.5, None, {"a": [1, {"b": None}]}])
def test_plain_data_is_stored(artifact: Any) -> None:
    """Else nothing ever would be."""
    assert json_of(ToolMessage("x", tool_call_id="1", artifact=artifact)) is not None
    assert json_of(Subclass("x", tool_call_id="1", artifact=artifact)) is None


async def landed(world: World) -> None:
    """Wait until the store has heard what was found out; nobody else does."""
    await world.pass_time(0.1)
