"""`Cache(shared=...)`: calls that are identical in all processes, and results that can be stored."""

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
from callboard.middleware._cache._fleet_results import json_of, message_of
from callboard.testing import tool_call
from tests.helpers import make

from ._world import MemoryWorld, Process, Tool, World, by_number, noted, until

pytestmark = pytest.mark.real_clock


async def test_results_of_another_name_or_version_are_not_taken(world: World) -> None:
    """A new version of a tool must not use results of the old one."""
    tool = Tool()
    store = world.store()
    await tool.cached(store, version=1).call()
    await world.pass_time(0.1)
    others = [tool.cached(store, version=2), tool.cached(store, version=1, name="other"), tool.cached(store)]

    assert [await other.call() for other in others] == ["run 2", "run 3", "run 4"]
    assert await tool.cached(world.store(), version=1).call() == "run 1"


async def plain(n: int = 0) -> str:
    """A function of a module has nothing but its arguments."""
    _plain_runs.append(n)
    return f"{n}"


_plain_runs: list[int] = []


async def test_without_a_key_the_arguments_are_what_a_function_depends_on(world: World) -> None:
    """A module-level function does the same in every process of the program."""
    _plain_runs.clear()
    tools = [StructuredTool.from_function(coroutine=plain, name="work", description="Work.") for _ in range(2)]
    processes = [Process(tool, Cache({"work"}, shared=world.store())) for tool in tools]

    assert [await process.call(5) for process in processes] == ["5"] * 2
    await world.pass_time(0.1)
    assert [await process.call(5) for process in processes] == ["5"] * 2
    assert _plain_runs == [5]
    processes[1].shares.invalidate("work", {"n": 5})
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


async def test_a_result_that_json_would_change_stays_in_its_process() -> None:
    """Calls that waited in other processes run by themselves; the result is not changed."""
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
    """Large results are not sent to the server; `largest=` is the maximum size."""
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
        await until(lambda: tool.runs == 1)
        tool.gate.set()

    assert await process.call() == "run 2"
    store.back()
    assert await process.call() == "run 3"
    assert await process.call() == "run 3"


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
