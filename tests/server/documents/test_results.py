"""`Cache(shared=...)`: processes share results, and nothing of calls that run."""

import warnings
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool

from callboard import CallboardWarning, CallEvent, StorageError, ToolNode, observe
from callboard.middleware import Cache
from callboard.middleware._cache._stored_results import json_of, message_of
from callboard.testing import tool_call
from tests.helpers import make

from ._world import MemoryWorld, Process, Tool, by_number, noted


async def test_a_result_is_for_all_processes() -> None:
    """Each call gets its own message with the shared result."""
    world, tool = MemoryWorld(), Tool()
    one, other = (tool.cached(world.store()) for _ in range(2))
    events: list[CallEvent] = []

    with observe(events.append):
        found = [await one.call(call_id="a"), await other.call(call_id="b"), await one.call(call_id="c")]

    assert found == ["run 1"] * 3
    assert [message.tool_call_id for message in other.answers + one.answers] == ["b", "a", "c"]
    assert noted(events) == ["cache_miss", "cache_hit", "cache_hit"]
    assert await other.call(n=1) == "run 2"


async def test_calls_of_one_process_run_once_and_those_of_several_once_in_each() -> None:
    """Running calls are not shared: waiting for another process would need to know that it is alive."""
    world, tool = MemoryWorld(), Tool()
    slow = tool.gate = anyio.Event()
    one, other = (tool.cached(world.store()) for _ in range(2))
    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        group.start_soon(one.call)
        await anyio.sleep(1)
        tool.gate = None
        assert await other.call() == "run 2"
        await anyio.sleep(1)
        slow.set()

    assert [answer.content for answer in one.answers] == ["run 1"] * 2
    # The result that was stored while the call ran is kept: that of a process that stood still may be older.
    assert await tool.cached(world.store()).call() == "run 2"


async def test_a_failure_is_not_kept() -> None:
    """Neither an error nor a message of failure is a result."""
    world, tool = MemoryWorld(), Tool(OSError("down"))
    one, other = (tool.cached(world.store()) for _ in range(2))

    async def work(n: int = 0) -> ToolMessage:
        tool.runs += 1
        return ToolMessage("no luck", tool_call_id="1", status="error")

    failing = Process(make(work), Cache({"work"}, shared=world.store(), key=by_number))
    assert "down" in await one.call()
    assert await failing.call() == await failing.call() == "no luck"
    tool.error = None

    assert await other.call() == "run 4"


async def test_a_result_is_good_for_its_ttl_by_the_clock_of_the_server() -> None:
    """After the lifetime of the result the next call runs."""
    world, tool = MemoryWorld(), Tool()
    one, other = (tool.cached(world.store(), ttl=10) for _ in range(2))
    await one.call()
    await anyio.sleep(9.9)
    assert await other.call() == "run 1"
    await anyio.sleep(0.2)

    assert await other.call() == "run 2"


def _forget(cache: Cache, how: str) -> None:
    if how == "clear":
        cache.clear()
    elif how == "key":
        cache.invalidate("work", key=7)
    else:
        cache.invalidate("work")


@pytest.mark.parametrize("how", ["tool", "key", "clear"])
async def test_what_is_forgotten_is_forgotten_by_all(how: str) -> None:
    """Later calls of the same process miss the cache, too, and what they find is kept again."""
    world, tool = MemoryWorld(), Tool()
    one, other = (tool.cached(world.store()) for _ in range(2))
    assert [await one.call(n=7), await other.call(n=7)] == ["run 1"] * 2

    _forget(one.shares, how)
    await anyio.sleep(1)

    assert [await one.call(n=7), await other.call(n=7)] == ["run 2"] * 2


@pytest.mark.parametrize("how", ["tool", "key", "clear"])
@pytest.mark.parametrize("elsewhere", [True, False])
async def test_what_ran_when_it_was_forgotten_is_not_kept(how: str, elsewhere: bool) -> None:
    """The result may be based on old data, so it is for its own call only."""
    world, tool = MemoryWorld(), Tool()
    gate = tool.gate = anyio.Event()
    one, other = (tool.cached(world.store()) for _ in range(2))

    async with anyio.create_task_group() as group:
        group.start_soon(one.call, 7)
        await anyio.sleep(1)
        tool.gate = None
        _forget((other if elsewhere else one).shares, how)
        await anyio.sleep(1)
        gate.set()

    assert one.answers[0].content == "run 1"
    assert await one.call(7) == await other.call(7) == "run 2"


async def test_of_so_many_results_the_oldest_go() -> None:
    """The maximum applies to all processes together, whichever one stores the next result."""
    world, tool = MemoryWorld(), Tool()
    one, other = (tool.cached(world.store(), size=3) for _ in range(2))
    for n in range(5):
        await (one, other)[n % 2].call(n)
        await anyio.sleep(1)

    assert [await one.call(n) for n in (4, 3, 2, 0)] == ["run 5", "run 4", "run 3", "run 6"]


async def test_results_of_another_name_or_version_are_not_taken() -> None:
    """A new version of a tool must not use results of the old one."""
    world, tool = MemoryWorld(), Tool()
    store = world.store()
    await tool.cached(store, version=1).call()
    others = [tool.cached(store, version=2), tool.cached(store, version=1, name="other"), tool.cached(store)]

    assert [await other.call() for other in others] == ["run 2", "run 3", "run 4"]
    assert await tool.cached(world.store(), version=1).call() == "run 1"


async def plain(n: int = 0) -> str:
    """A function of a module has nothing but its arguments."""
    _plain_runs.append(n)
    return f"{n}"


_plain_runs: list[int] = []


async def test_without_a_key_the_arguments_are_what_a_function_depends_on() -> None:
    """A module-level function does the same in every process of the program."""
    _plain_runs.clear()
    world = MemoryWorld()
    tools = [StructuredTool.from_function(coroutine=plain, name="work", description="Work.") for _ in range(2)]
    processes = [Process(tool, Cache({"work"}, shared=world.store())) for tool in tools]

    assert [await process.call(5) for process in processes] == ["5"] * 2
    assert _plain_runs == [5]
    await anyio.sleep(1)
    processes[1].shares.invalidate("work", {"n": 5})
    await anyio.sleep(1)
    assert await processes[1].call(5) == "5"
    assert _plain_runs == [5, 5]


async def test_a_tool_that_is_more_than_a_function_is_shared_with_a_key_only() -> None:
    """A stateful tool may belong to one user, and another process may have one of the same name for another."""
    world, tool = MemoryWorld(), Tool()
    processes = [tool.cached(world.store(), key=None) for _ in range(2)]
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


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("content", "artifact"), [("text", {"pair": (1, 2)}), ("x" * 200_000, None)], ids=["no JSON", "too large"]
)
async def test_a_result_that_cannot_be_stored_stays_in_its_process(content: str, artifact: object) -> None:
    """JSON would change it, or it is larger than `largest`; the result is neither sent nor changed."""
    world = MemoryWorld()
    runs: list[int] = []

    async def work(n: int = 0) -> tuple[str, object]:
        runs.append(n)
        return content, artifact

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
    assert processes[1].answers[0].artifact == artifact


async def test_a_key_that_is_no_json_stays_in_its_process() -> None:
    """Another process could not compute the same key."""
    world, tool, key = MemoryWorld(), Tool(), object()
    process = tool.cached(world.store(), key=lambda _: key)
    events: list[CallEvent] = []

    with observe(events.append):
        await process.call()

    assert noted(events) == ["cache_skipped", "cache_miss"]
    assert not world.server.texts


async def test_neither_arguments_nor_names_are_stored() -> None:
    """Everything but the result is stored as a digest."""
    world, tool = MemoryWorld(), Tool()
    process = tool.cached(world.store(), key=lambda request: f"secret {request.tool_call['args']['n']}")

    await process.call(n=5, call_id="private")

    assert "run 1" in repr(world.server.texts)
    assert all(word not in repr([world.server.texts, world.server.marks]) for word in ("secret", "private", "'work'"))


async def test_calls_run_while_the_store_is_away_and_keep_nothing() -> None:
    """Without the server, invalidations could be missed; identical calls of one process still run once."""
    world, tool = MemoryWorld(), Tool()
    store = world.store()
    process = tool.cached(store)
    store.is_away = True
    tool.gate = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(process.call)
        group.start_soon(process.call)
        await anyio.sleep(1)
        tool.gate.set()

    assert await process.call() == "run 2"
    store.back()
    assert [await process.call() for _ in range(2)] == ["run 3"] * 2


@pytest.mark.parametrize("what", ["cached", "broken"])
async def test_calls_are_refused_by_choice_while_the_store_is_away(what: str) -> None:
    """By option, calls are refused, for tools that must not run twice, or while the state is unknown."""
    tool = Tool()
    store = MemoryWorld().store(away="refuse")
    store.is_away = True
    process = getattr(tool, what)(store)

    assert await process.call() == "rejected"
    assert "was not started: the store is away" in process.answers[0].content
    assert tool.runs == 0


@pytest.mark.parametrize("what", ["cached", "broken"])
async def test_a_store_that_cannot_be_used_is_an_error_of_the_call(what: str) -> None:
    """A wrong password is permanent, so it is not ignored."""
    store = MemoryWorld().store()
    store.failure = StorageError("redis://host", "refuses us.")
    node = ToolNode([make(Tool().work)], middleware=[getattr(Tool(), what)(store).shares])

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
    """A cache must not change results."""
    message = ToolMessage(content, tool_call_id="1", artifact=artifact, name="work", additional_kwargs={"a": [1]})

    text = json_of(message)

    if text is not None:
        found = message_of(text)
        assert found is not None
        assert found.model_copy(update={"tool_call_id": "1"}) == message
        assert repr(found.artifact) == repr(artifact)
        assert repr(found.content) == repr(message.content)


class Subclass(ToolMessage):
    """Subclass of a message, with additional state."""


@pytest.mark.parametrize("artifact", [True, 1, 1.5, None, {"a": [1, {"b": None}]}])
def test_plain_data_is_stored(artifact: Any) -> None:
    """Plain data in an artifact is stored; a subclass of a message is not."""
    assert json_of(ToolMessage("x", tool_call_id="1", artifact=artifact)) is not None
    assert json_of(Subclass("x", tool_call_id="1", artifact=artifact)) is None
