"""`Cache(shared=...)`: one of all identical calls runs, and every process gets its result."""

import anyio
import pytest
from langchain_core.messages import ToolMessage

from callboard import CallEvent, CallPolicy, observe
from callboard.middleware import Cache
from tests.helpers import make

from ._world import LEASE, MemoryWorld, Process, Tool, World, by_number, noted, until

pytestmark = pytest.mark.real_clock


async def test_a_result_is_for_all_processes(world: World) -> None:
    """Each call gets its own message with the shared result."""
    tool = Tool()
    one, other = (tool.cached(world.store()) for _ in range(2))

    assert await one.call(call_id="a") == "run 1"
    await world.pass_time(0.1)
    assert await other.call(call_id="b") == "run 1"
    assert await one.call(call_id="c") == "run 1"

    assert [message.tool_call_id for message in other.answers + one.answers] == ["b", "a", "c"]
    assert await other.call(n=1) == "run 2"
    assert tool.runs == 2


async def test_of_identical_calls_in_all_processes_one_runs(world: World) -> None:
    """One call runs, and the others wait for its result."""
    tool = Tool()
    tool.gate = anyio.Event()
    processes = [tool.cached(world.store(lease=60.0)) for _ in range(4)]  # waiting calls do not poll
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
    """The leader renews its lease while its call runs."""
    tool = Tool()
    tool.gate = anyio.Event()
    one, other = (tool.cached(world.store()) for _ in range(2))

    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 1)
        group.start_soon(other.call)
        await world.pass_time(3 * LEASE)
        assert tool.runs == 1
        tool.gate.set()

    assert other.answers[0].content == "run 1"


async def test_when_the_leader_is_silent_for_a_lease_the_next_in_line_runs(world: World) -> None:
    """The late result of the first leader is not stored."""
    tool = Tool()
    first = tool.gate = anyio.Event()
    lost = world.store()
    slow, heir, third = tool.cached(lost), tool.cached(world.store()), tool.cached(world.store())

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
        await world.pass_time(2 * LEASE)  # the late result has been received by now
        assert third.answers == []
        second.set()

    assert slow.answers[0].content == "run 1"
    assert [one.answers[0].content for one in (heir, third)] == ["run 2"] * 2
    await world.pass_time(0.1)
    assert await tool.cached(world.store()).call() == "run 2"


async def test_a_cancelled_leader_hands_over_at_once(world: World) -> None:
    """The leader reports its cancellation, so no waiting call needs its lease to expire."""
    tool = Tool()
    tool.gate = anyio.Event()
    one, other = (tool.cached(world.store(lease=20.0)) for _ in range(2))

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
    """The grant of the store is on its way, and no other process knows that the call was cancelled."""
    world, tool = MemoryWorld(), Tool()
    store = world.store(lease=60.0)
    one, other = tool.cached(store), tool.cached(world.store(lease=60.0))
    store.held = []
    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: bool(store.held))
        group.cancel_scope.cancel()

    assert await other.call() == "run 1"


async def test_a_leader_without_end_is_not_trusted() -> None:
    """A forged entry may claim an endless leader; calls wait for it no longer than for other leaders."""
    world, tool = MemoryWorld(), Tool()
    tool.gate = anyio.Event()
    one, other = (tool.cached(world.store()) for _ in range(2))
    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 1)
        [(name, (text, _, most))] = world.server.texts.items()
        world.server.texts[name] = text, float("inf"), most
        tool.gate = None
        assert await other.call() == "run 2"
        group.cancel_scope.cancel()


async def test_an_error_is_not_shared_and_those_who_waited_find_out_for_themselves(world: World) -> None:
    """An exception cannot be sent to other processes; running the waiting calls in turn would take too long."""
    tool = Tool()
    tool.gate, tool.error = anyio.Event(), OSError("down")
    processes = [tool.cached(world.store(lease=20.0)) for _ in range(3)]

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
    """Waiting calls get the failure, and later calls run, as in one process."""
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
    """After the lifetime of the result the next call runs."""
    tool = Tool()
    one, other = (tool.cached(world.store(), ttl=0.4) for _ in range(2))
    await one.call()
    await world.pass_time(0.1)
    assert await other.call() == "run 1"

    await world.pass_time(0.45)

    assert await other.call() == "run 2"


@pytest.mark.parametrize("how", ["tool", "key", "clear"])
async def test_what_is_forgotten_is_forgotten_by_all(world: World, how: str) -> None:
    """Later calls of the same process miss the cache, too."""
    tool = Tool()
    one, other = (tool.cached(world.store()) for _ in range(2))
    await one.call(n=7)
    await world.pass_time(0.1)
    assert await other.call(n=7) == "run 1"

    _forget(one.shares, how)

    assert await one.call(n=7) == "run 2"
    await world.pass_time(0.1)
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
    """The result may be based on old data, so calls that waited for it in another process run by themselves."""
    tool = Tool()
    gate = tool.gate = anyio.Event()
    one, other = (tool.cached(world.store()) for _ in range(2))

    async with anyio.create_task_group() as group:
        group.start_soon(one.call, 7)
        await until(lambda: tool.runs == 1)
        group.start_soon(other.call, 7)
        await world.pass_time(0.1)
        tool.gate = None
        _forget(other.shares, how)
        await until(lambda: len(other.answers) == 1)
        gate.set()

    assert (one.answers[0].content, other.answers[0].content) == ("run 1", "run 2")
    await world.pass_time(0.1)
    assert await tool.cached(world.store()).call(7) == "run 2"


async def test_a_call_waits_no_longer_than_its_budget(world: World) -> None:
    """A leader in another process may take longer than the waiting call's own budget."""
    tool = Tool()
    tool.gate = anyio.Event()
    one = tool.cached(world.store())
    other = tool.cached(world.store(), CallPolicy(budget=0.2))

    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 1)
        await other.call()
        assert tool.runs == 1
        tool.gate.set()

    assert other.answers[0].status == "error"
    assert one.answers[0].content == "run 1"


async def test_of_so_many_results_the_oldest_go(world: World) -> None:
    """The maximum applies to all processes together, whichever one stores the next result."""
    tool = Tool()
    one, other = (tool.cached(world.store(), size=3) for _ in range(2))
    for n in range(5):
        await (one, other)[n % 2].call(n)
        await world.pass_time(0.02)

    found = [await one.call(n) for n in (4, 3, 2, 0)]

    assert found == ["run 5", "run 4", "run 3", "run 6"]
